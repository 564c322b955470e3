"""The agent loop that calls tools over HTTP: verl-tool's AgentActorConfig, parameter by parameter."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import Word

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
    """Off, every trajectory is one response and no tool is called. A task's own `use_tool` goes before it."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step: the group that a reward is compared with."""

    max_turns: int = Field(default=1, ge=0, le=100_000)
    """Tool calls of a trajectory; one more response may follow the last."""

    val_max_turns: int | None = Field(default=None, ge=0, le=100_000)
    """`maxTurns` in validations; left out, the same."""

    min_turns: int = Field(default=0, ge=0, le=100_000)
    """First turns that always call a tool: where the response holds no stop token, the first one is appended."""

    call_tool_first: bool = False
    """Call the tool with an empty action before the first response; its observation opens the context."""

    tool_server_url: Url | None = None
    """Addresses of tool servers, with commas between them and any of them as good as the others; left out, a
    run on one machine starts a server of its own, and a run in a cluster asks those of its team."""

    tool_type: Word = "python_code"
    """Tools of the server that a run on one machine starts, with commas between them; those of a team have their
    own."""

    max_prompt_length: Tokens = 1024
    """Tokens a prompt may have; a longer one loses its oldest part."""

    max_start_length: Tokens | None = None
    """Tokens of the prompt that a row keeps for learning, the last ones; the policy still reads all of it."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt, responses and observations together."""

    val_max_response_length: Tokens | None = None
    """`maxResponseLength` in validations; left out, the same."""

    max_obs_length: Tokens = 512
    """Tokens of one observation, without marker and chat turn around it."""

    max_action_length: Tokens | None = None
    """Tokens of one response; left out, what is left of `maxResponseLength`."""

    truncate_obs_side: Literal["left", "right", "middle"] = "left"
    """Where an observation that is too long loses its tokens: `left` keeps its end, `right` its beginning, `middle`
    both."""

    truncate_response_side: Literal["left", "right"] = "left"
    """What is learned from where an observation goes beyond `maxResponseLength`: `left` keeps the first tokens,
    `right` the last, with those before them read as prompt."""

    rolling_with_prompt: bool = False
    """Where the context is full, drop its oldest turns, keep the prompt and go on; each stretch becomes a row."""

    action_stop_tokens: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Path of a file with the strings that end an action, with commas between them."""

    stop_tokens: Annotated[tuple[StopToken, ...], Field(strict=False, max_length=64)] = ()
    """The strings that end an action, in place of a file; the first of them that occurs cuts the action."""

    additional_eos_token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, max_length=64)] = ()
    """Token ids that end a response like the tokenizer's own end."""

    force_finish_for_last_turn: bool = False
    """Let the last response run on: no stop token ends it."""

    mask_observations: bool = True
    """Leave the tokens of observations out of the loss."""

    mask_overlong_loss: bool = False
    """Leave trajectories that did not come to an end of their own out of the loss."""

    mask_void_traj: bool = False
    """Leave trajectories without a valid action and without an answer (`\\boxed`, `final_answer(`) out of the loss."""

    enable_mtrl: bool = False
    """Wrap observations as turns of a chat; without stop tokens every response is an action."""

    mtrl_role: Word = "user"
    """Role of the turns that hold observations."""

    mtrl_sep: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """What an observation is wrapped in, with `{obs}` in its place; left out, a turn of the model's chat template."""

    turn_end_token: Word = "<|im_end|>"
    """Ends a response in front of an observation that is a chat turn."""

    max_concurrent_trajectories: int | None = Field(default=1024, ge=1, le=1_000_000)
    """Trajectories in flight at once, over all workers; null sets no limit."""

    tool_call_timeout: float = Field(default=30, gt=0, le=86_400)
    """Seconds a tool call may take, tries on other servers and waits between them included."""

    tool_call_max_retries: int = Field(default=5, ge=0, le=1000)
    """Tries after the first one of a call, while its time lasts."""

    on_tool_failure: Literal["fail", "text"] = "fail"
    """What a call that cannot be done leads to: `fail` ends the trajectory as `failed`, out of baseline and loss;
    `text` puts the error into the context as an observation, as verl-tool does."""

    retokenization: bool = False
    """Tokenize every response anew from its text, as verl-tool can; what is trained is then not what was sampled."""

    logprobs: bool = True
    """Keep the log-probs of sampled tokens; those of observations are 0."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
