"""Protocols of verl's, Hugging Face's and Ray's objects in agent loops, none of which have static types."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypedDict, overload

if TYPE_CHECKING:
    from turnmill.rollout.token_output import TokenOutput

Message = Mapping[str, Any]
"""A chat message: `role`, `content` (a text, or a list of parts) and other fields of the chat template."""

SamplingParams = Mapping[str, object]
"""vLLM's sampling parameters."""


class BatchRow(TypedDict):
    """The row of a batch from which a worker plays one episode, or one segment of an environment slot."""

    uid: str
    index: int
    """Position in the step's batch."""

    session_id: int
    """Number of the sample among those of its prompt."""

    global_steps: int
    slot: NotRequired[int]
    """The environment slot, if turns are trained on."""


class TrajectoryInfo(TypedDict):
    """Further arguments that verl passes to a loop with its row."""

    step: int
    sample_index: int
    rollout_n: int
    validate: bool


class LLMClient(Protocol):
    """verl's client of the inference engines."""

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> "TokenOutput":
        """Return the response to a prompt; requests with one id go to one engine."""


class ChatTemplate(Protocol):
    """An object that renders chat messages."""

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool = False,
        **settings: object,
    ) -> str: ...

    @overload
    def apply_chat_template(
        self, messages: Sequence[Message], *, tokenize: Literal[True], return_dict: Literal[False]
    ) -> list[int]: ...


class Processor(ChatTemplate, Protocol):
    """A processor of `transformers`, which accepts images and text."""


class AddedToken(Protocol):
    """A token that no text is split within."""

    content: str
    special: bool
    lstrip: bool
    rstrip: bool
    single_word: bool
    normalized: bool


class Tokenizer(ChatTemplate, Protocol):
    """A tokenizer of `transformers`."""

    added_tokens_decoder: Mapping[int, AddedToken]

    eos_token: str
    eos_token_id: int

    def __call__(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> Mapping[str, list[int]]:
        """Tokenize a text; the ids are `input_ids`."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""


class MergeResult(Protocol):
    """A context with messages appended."""

    token_ids: list[int]
    appended_token_count: int
    inserted_token_ids: Sequence[int]


class TokenBuilder(Protocol):
    """verl's continuous token builder: tokenizes prompts and appends messages to them."""

    chat_template_kwargs: Mapping[str, object]

    def build_initial_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[object] | None = None,
        images: Sequence[object] | None = None,
    ) -> list[int]:
        """Return the tokens of a prompt."""

    def render_tokens_with_mm(
        self,
        messages: Sequence[Message],
        images: Sequence[object],
        *,
        add_generation_prompt: bool,
        tools: Sequence[object],
    ) -> list[int]:
        """Return the tokens of a chat with images."""

    def _render_tokens(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[object]
    ) -> list[int]: ...


class MultiTurnConfig(Protocol):
    """verl's settings `rollout.multi_turn`."""

    use_inference_chat_template: bool
    tokenization_sanity_check_mode: str


class RolloutConfig(Protocol):
    """verl's settings `rollout`."""

    multi_turn: MultiTurnConfig


class TurnmillConfig(Protocol):
    """The section that turnmill adds to verl's configuration."""

    job: str
    """The job as JSON."""

    run_dir: str

    def get(self, name: str) -> str | None:
        """Return an optional entry: `store_url`, `attempt`, `tool_server_url`."""


class RunConfig(Protocol):
    """verl's configuration of a run, an OmegaConf DictConfig."""

    turnmill: TurnmillConfig
    actor_rollout_ref: Any
    data: Mapping[str, object]


class RemoteMethod(Protocol):
    """A method of a Ray actor."""

    def remote(self, *args: object, **kwargs: object) -> Awaitable[object]:
        """Call the method; return a reference to the result."""


class ActorId(Protocol):
    """The id of a Ray actor."""

    def hex(self) -> str:
        """Return the id in hexadecimal."""


class ActorHandle(Protocol):
    """A handle of a Ray actor."""

    _actor_id: ActorId

    def __getattr__(self, name: str) -> RemoteMethod: ...


class ActorClass(Protocol):
    """A class of Ray actors."""

    def options(self, *, name: str) -> "ActorClass":
        """Return the class with other options."""

    def remote(self, *args: object, **kwargs: object) -> ActorHandle:
        """Make an actor."""


class LoadBalancer(Protocol):
    """The Ray actor that assigns requests to inference servers."""

    remove_servers: RemoteMethod
