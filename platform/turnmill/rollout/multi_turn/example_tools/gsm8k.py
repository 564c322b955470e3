"""The tool of verl's GSM8K recipe: says whether an answer is right."""

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse
from verl.utils.reward_score import gsm8k

WORSE_OR_EQUAL = -0.05
"""Reward of a call that has not brought the right answer."""


class Gsm8kTool(BaseTool):
    """Compares an answer with the truth that its task has in `tools_kwargs`."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self._truths: dict[str, str] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Take the truth of a task."""
        handle = instance_id or uuid4().hex
        self._truths[handle] = str(kwargs["create_kwargs"]["ground_truth"])
        return handle, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """What the answer is worth."""
        answer = str(parameters.get("answer", "")).removeprefix("#### ")
        worth = gsm8k.compute_score(f"#### {answer}", self._truths[instance_id], method="flexible")
        told = ToolResponse(text=f"Current parsed answer={answer} reward={worth}")
        return told, 0.0 if worth > 0 else WORSE_OR_EQUAL, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the truth."""
        del self._truths[instance_id]
