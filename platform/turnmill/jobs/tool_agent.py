"""The agent loop that calls tools over HTTP: verl-tool's AgentActorConfig, parameter by parameter."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import Word
from turnmill.jobs.tool_server import RunToolServer

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Url = Annotated[str, Field(min_length=1, max_length=4096)]
StopToken = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class ToolAgent(BaseAgent):
    """The agent loop over tools: one context per trajectory, in which responses and observations follow each other."""

    implementation = "turnmill.training.agent_kinds.tool:ToolKind"

    type: Literal["tool"] = "tool"
    """Agent loop: `tool` calls tools over HTTP and learns from whole trajectories."""

    enable_agent: bool = True
    """Off, every trajectory is a single response without tool calls. A task's own `use_tool` takes precedence."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step; rewards are compared within this group."""

    max_turns: int = Field(default=1, ge=0, le=100_000)
    """Tool calls per trajectory; the policy may generate one more response after the last."""

    val_max_turns: int | None = Field(default=None, ge=0, le=100_000)
    """`maxTurns` in validations; left out, the same."""

    min_turns: int = Field(default=0, ge=0, le=100_000)
    """Number of first turns that always call a tool: a response without a stop string gets the first one appended."""

    call_tool_first: bool = False
    """Call the tool with an empty action before the first response; its observation opens the context."""

    tool_server_url: Url | None = None
    """Addresses of tool servers, separated by commas; any of them may get a call. Left out, a run on one machine starts
    a server of its own, and a run in a cluster uses those of its team."""

    tool_type: Word = "python_code"
    """Tools of the server that a run on one machine starts, separated by commas; tool servers of a team have a list of
    their own."""

    tool_server: RunToolServer | None = None
    """Flags and tools' settings of the server that a run on one machine starts, such as `{doneIfInvalid: true}`."""

    max_prompt_length: Tokens = 1024
    """Tokens of a prompt; a longer one is truncated from the left."""

    max_start_length: Tokens | None = None
    """Tokens of the prompt in a training row, counted from its end; left out, the whole prompt. The policy reads the
    whole prompt in any case."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt: all responses and observations of a trajectory together."""

    val_max_response_length: Tokens | None = None
    """`maxResponseLength` in validations; left out, the same."""

    max_obs_length: Tokens = 512
    """Tokens of one observation, not counting the truncation marker and the chat template; a longer one is truncated as
    `truncateObsSide` says."""

    max_action_length: Tokens | None = None
    """Tokens of one response; left out, the rest of `maxResponseLength`."""

    truncate_obs_side: Literal["left", "right", "middle"] = "left"
    """Part that an observation longer than `maxObsLength` loses: `left` its beginning, `right` its end, `middle` its
    middle."""

    truncate_response_side: Literal["left", "right"] = "left"
    """Tokens to train on if an observation exceeds `maxResponseLength`: `left` trains on the first ones, `right` on the
    last ones, and those before them become part of the row's prompt."""

    rolling_with_prompt: bool = False
    """Drop the oldest turns, but not the prompt, when the context is full, and start a new training row. Off, the
    trajectory ends with stop reason `max_tokens`."""

    action_stop_tokens: Annotated[str, Field(max_length=1024)] | None = None
    """Path of a text file with the stop strings that end an action, separated by commas, or such a text itself; empty
    for none; left out, `stopTokens` has them."""

    stop_tokens: Annotated[tuple[StopToken, ...], Field(strict=False, max_length=64)] = ()
    """Stop strings that end an action; the first one in this list that occurs in a response ends its action. Without
    any, and without `enableMtrl`, no response calls a tool."""

    additional_eos_token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, max_length=64)] = ()
    """Token ids that end a response, in addition to the tokenizer's EOS token."""

    force_finish_for_last_turn: bool = False
    """Generate the last response without stop strings, so that a tool call does not end it."""

    mask_observations: bool = True
    """Leave the tokens of observations out of the loss."""

    mask_overlong_loss: bool = False
    """Leave trajectories whose stop reason is not `completed` out of the loss."""

    mask_void_traj: bool = False
    """Leave trajectories without a valid action and without a final answer (`\\boxed`, `final_answer(`) out of the
    loss."""

    enable_mtrl: bool = False
    """Wrap observations in chat turns; without stop strings, every response is an action."""

    mtrl_role: Word = "user"
    """Role of the chat turns that contain observations."""

    mtrl_sep: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Text around an observation, with `{obs}` in its place; left out, the model's chat template gives it."""

    turn_end_token: Word = "<|im_end|>"
    """Token that ends a response; it is added before an observation in a chat turn if the response lacks it."""

    max_concurrent_trajectories: int | None = Field(default=1024, ge=1, le=1_000_000)
    """Trajectories in flight at once, over all workers; null sets no limit."""

    tool_call_timeout: float = Field(default=30, gt=0, le=86_400)
    """Seconds for a tool call, on one server or several; time in which none can work on it does not count."""

    tool_outage_timeout: float = Field(default=240, gt=0, le=86_400)
    """Seconds for which a tool call waits, in all, for servers or a trajectory store that are away."""

    tool_call_max_retries: int = Field(default=5, ge=0, le=1000)
    """Retries of a tool call, besides those of calls that no server took."""

    on_tool_failure: Literal["fail", "text"] = "fail"
    """Effect of a tool call that fails after all retries: `fail` ends the trajectory as `failed`, without a part in
    baseline and loss; `text` adds the error to the context as an observation, as verl-tool does."""

    retokenization: bool = False
    """Tokenize the text of every response again, as verl-tool can; the trained tokens may then differ from the sampled
    ones."""

    logprobs: bool = True
    """Keep the log-probs of sampled tokens; observations have 0."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
