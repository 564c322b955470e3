"""The agent loops of verl's multi-turn rollout: what verl has under `rollout.multi_turn` and `rollout.agent`."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import FilePath, Word
from turnmill.jobs.tool_agent import Tokens

ClassName = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]


class MultiTurnAgent(BaseAgent):
    """verl's agent loops: a chat in which the policy calls functions by its model's own format."""

    implementation = "turnmill.training.agent_kinds.multi_turn:MultiTurnKind"

    type: Literal["multi_turn"] = "multi_turn"
    """Agent loop: `multi_turn` runs verl's loops, or yours in their form, and learns from whole trajectories."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step: the group that a reward is compared with."""

    tool_config_path: FilePath | None = None
    """YAML file that lists `BaseTool` classes with their settings and schemas; `pkg://PACKAGE/PATH` is one in a
    package."""

    function_tool_path: FilePath | None = None
    """Python file with functions marked `@function_tool`."""

    format: Literal["hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4"] = (
        "hermes"
    )
    """The format in which the model writes calls of functions."""

    max_assistant_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Responses of a trajectory; left out, as many as fit."""

    max_user_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Turns in which tools answer; left out, as many as fit."""

    max_parallel_calls: int = Field(default=1, ge=1, le=1024)
    """Calls of one response that are done, side by side; further ones are dropped."""

    max_tool_response_length: int = Field(default=256, ge=1, le=10_000_000)
    """Characters of a tool's text; a longer one is cut."""

    tool_response_truncate_side: Literal["left", "right", "middle"] = "middle"
    """Where a text that is too long is cut: `left` keeps its end, `right` its beginning, `middle` both."""

    tool_call_timeout: float = Field(default=300, gt=0, le=86_400)
    """Seconds a tool call may take."""

    on_tool_failure: Literal["fail", "text"] = "fail"
    """What a call leads to that runs out of time or finds nobody at the other end: `fail` ends the trajectory as
    `failed`, out of baseline and loss; `text` tells the policy, as verl does."""

    max_prompt_length: Tokens = 1024
    """Tokens a prompt may have, schemas of tools included; a longer one loses its oldest part."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt, responses and tools' answers together."""

    use_inference_chat_template: bool = False
    """Have the policy read each turn as the chat template renders the messages so far, often without earlier
    reasoning, and not the tokens as they came; each such turn is learned from in a row of its own."""

    tokenization_sanity_check_mode: Literal["strict", "ignore_strippable", "disable"] = "strict"
    """Compare a trajectory's tokens with what the chat template makes of its messages, and warn of differences:
    `strict` of any, `ignore_strippable` of more than blanks."""

    default_agent_loop: Word = "tool_agent"
    """Agent loop of tasks that name none as `agent_name`: `tool_agent`, `single_turn_agent`, or one of yours."""

    agent_loop_config_path: FilePath | None = None
    """YAML file that lists agent loops of yours: `name`, `_target_` (the class), and what it is made with."""

    agent_loop_manager_class: ClassName | None = None
    """Class of yours, as `package.module.Class`, that hands tasks out to agent loop workers."""

    return_multi_modal_inputs: bool = False
    """Give agent loops what the processor makes of a task's images as `multi_modal_inputs`. Leave it off where tools
    bring images of their own."""

    max_concurrent_trajectories: int | None = Field(default=1024, ge=1, le=1_000_000)
    """Trajectories in flight at once, over all workers; null sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
