"""What plain verl loads: its own agent loop for tools with seeds, a tool, a parser of calls, and the reward."""

import os
from typing import Any

from chaos.effects import reward_of
from chaos.tool_client import call_tool
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from turnmill.tasks.base import stable_hash

TOOLS_VARIABLE = "CHAOS_TOOLS"
RESPONSE_TOKENS = 8


class SeededToolAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """verl's loop; what is sampled follows from the task and the number of the sample alone."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> Any:
        """Play one trajectory."""
        name = f"{row['index']}-{row['session_id']}"
        sampling = {**sampling_params, "seed": stable_hash(name) % 2**31, "max_tokens": RESPONSE_TOKENS}
        return await super().run(sampling, priority, **{**row, "tools_kwargs": {"trajectory": name}})


@ToolParser.register("anything")
class AnythingIsACall(ToolParser):  # type: ignore[misc]
    """Takes any response for a call, as the tiny model has not learned to make one."""

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        """Return the text and one call."""
        return self.tokenizer.decode(responses_ids), [FunctionCall(name="count", arguments="{}")]


class Count(BaseTool):  # type: ignore[misc]
    """Asks a tool server, which has no state: the number of the call is verl's."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """Call it; what this raises, verl's loop turns into a text for the policy."""
        agent = kwargs["agent_data"]
        number = agent.user_turns + 1
        text = await call_tool(
            os.environ[TOOLS_VARIABLE], agent.tools_kwargs["trajectory"], number, f"{agent.request_id} {number}"
        )
        return ToolResponse(text=text), 0.0, {}


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return the reward of all that was said."""
    return reward_of(solution_str)
