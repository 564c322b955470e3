"""Protocols of the verl, Hugging Face and Ray objects that agent loops are given; verl itself ships no types."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol, overload

from verl.workers.rollout.replica import TokenOutput

Message = Mapping[str, Any]
"""A chat message: `role`, `content` (a text, or a list of parts) and what else a chat template reads."""

SamplingParams = dict[str, object]
"""vLLM's sampling parameters."""


class LLMClient(Protocol):
    """verl's client of the inference engines."""

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return the response to a prompt; requests with one id go to one engine."""


class Tokenizer(Protocol):
    """A tokenizer of `transformers`."""

    eos_token: str
    eos_token_id: int

    def __call__(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool
    ) -> Mapping[Literal["input_ids"], list[int]]:
        """Tokenize a text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""

    @overload
    def apply_chat_template(
        self, messages: Sequence[Message], *, tokenize: Literal[False], add_generation_prompt: bool = False
    ) -> str: ...

    @overload
    def apply_chat_template(
        self, messages: Sequence[Message], *, tokenize: Literal[True], return_dict: Literal[False]
    ) -> list[int]: ...


class TurnmillConfig(Protocol):
    """What turnmill adds to verl's configuration."""

    job: str
    """The job as JSON."""

    run_dir: str

    def get(self, name: str) -> str | None:
        """Return an optional entry: `store_url`, `attempt`, `tool_server_url`."""


class RunConfig(Protocol):
    """verl's configuration of a run, an OmegaConf DictConfig."""

    turnmill: TurnmillConfig
    data: object


class RemoteMethod(Protocol):
    """A method of a Ray actor."""

    def remote(self, *args: object, **kwargs: object) -> Awaitable[Any]:
        """Call it; return a reference to the result."""


class ActorHandle(Protocol):
    """A handle of a Ray actor."""

    def __getattr__(self, name: str) -> RemoteMethod: ...
