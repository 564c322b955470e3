"""Settings of verl's agent loops: those under `rollout.multi_turn` and `rollout.agent` in verl's configuration."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import FilePath, Word
from turnmill.jobs.tool_agent import Tokens

ClassName = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]


class MultiTurnAgent(BaseAgent):
    """verl's agent loops: a chat in which the policy calls functions in the model's own format."""

    implementation = "turnmill.training.agent_kinds.multi_turn:MultiTurnKind"

    type: Literal["multi_turn"] = "multi_turn"
    """Agent loop: `multi_turn` runs verl's loops, or your own with verl's interface, and learns from whole
    trajectories."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step; rewards are compared within this group."""

    tool_config_path: FilePath | None = None
    """YAML file that lists `BaseTool` classes with their settings and schemas; `pkg://PACKAGE/PATH` is a file of a
    package."""

    function_tool_path: FilePath | None = None
    """Python file with functions marked `@function_tool`."""

    format: Literal["hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4"] = (
        "hermes"
    )
    """Format in which the model writes function calls."""

    max_assistant_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Responses per trajectory; left out, only `maxResponseLength` limits them."""

    max_user_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Turns with tool results per trajectory; left out, only `maxResponseLength` limits them."""

    max_parallel_calls: int = Field(default=1, ge=1, le=1024)
    """Tool calls of one response that are executed, in parallel; further ones are dropped."""

    max_tool_response_length: int = Field(default=256, ge=1, le=10_000_000)
    """Characters of a tool's text; a longer one is truncated as `toolResponseTruncateSide` says."""

    tool_response_truncate_side: Literal["left", "right", "middle"] = "middle"
    """Part that a tool's text loses if it is too long: `left` its beginning, `right` its end, `middle` its middle."""

    tool_call_timeout: float = Field(default=300, gt=0, le=86_400)
    """Seconds for a tool call."""

    on_tool_failure: Literal["fail", "text"] = "fail"
    """Effect of a tool call that exceeds its timeout or cannot connect: `fail` ends the trajectory as `failed`, without
    a part in baseline and loss; `text` gives the error to the policy, as verl does."""

    max_prompt_length: Tokens = 1024
    """Tokens of a prompt, including the schemas of tools; a longer one is truncated from the left."""

    filter_overlong_prompts: bool = False
    """Leave out the tasks of a data set whose prompts are longer than `maxPromptLength`, with the schemas of tools."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt: all responses and tool results of a trajectory together."""

    use_inference_chat_template: bool = False
    """Render the messages with the chat template before each turn, often without earlier reasoning, instead of
    continuing from the sampled tokens; a turn whose context changes starts a new training row."""

    tokenization_sanity_check_mode: Literal["strict", "ignore_strippable", "disable"] = "strict"
    """Compare a trajectory's tokens with the chat template's rendering of its messages, and warn of differences:
    `strict` of any, `ignore_strippable` of those beyond whitespace, `disable` of none."""

    default_agent_loop: Word = "tool_agent"
    """Agent loop for tasks without an `agent_name`: `tool_agent`, `single_turn_agent`, or one of
    `agentLoopConfigPath`."""

    agent_loop_config_path: FilePath | None = None
    """YAML file that lists agent loops of your own: `name`, `_target_` (the class), and the arguments of its
    constructor."""

    agent_loop_manager_class: ClassName | None = None
    """Class of your own, as `package.module.Class`, that distributes tasks to agent loop workers; left out,
    turnmill's."""

    return_multi_modal_inputs: bool = False
    """Pass the processor's output for a task's images to agent loops as `multi_modal_inputs`. Leave it off if tools
    return images."""

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
