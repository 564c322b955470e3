"""The tool of verl's GSM8K recipe, which checks an answer."""

from collections.abc import Mapping
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.reward_score import gsm8k

WRONG_ANSWER_REWARD = -0.05
"""Reward of a call with a wrong answer."""


class Gsm8kTool(BaseTool):
    """Compares an answer with the ground truth in the task's `tools_kwargs`."""

    def __init__(self, config: dict[str, object], tool_schema: OpenAIFunctionToolSchema) -> None:
        super().__init__(config, tool_schema)
        self._ground_truths: dict[str, str] = {}

    async def create(
        self, instance_id: str | None = None, *, create_kwargs: Mapping[str, object], **kwargs: object
    ) -> tuple[str, ToolResponse]:
        """Keep the ground truth of the task for one call."""
        handle = instance_id or uuid4().hex
        self._ground_truths[handle] = str(create_kwargs["ground_truth"])
        return handle, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, object], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, float]]:
        """Return the score of the answer."""
        answer = str(parameters.get("answer", "")).removeprefix("#### ")
        score = gsm8k.compute_score(f"#### {answer}", self._ground_truths[instance_id], method="flexible")
        response = ToolResponse(text=f"Current parsed answer={answer} reward={score}")
        return response, 0.0 if score > 0 else WRONG_ANSWER_REWARD, {}

    async def release(self, instance_id: str, **kwargs: object) -> None:
        """Drop the ground truth."""
        del self._ground_truths[instance_id]
