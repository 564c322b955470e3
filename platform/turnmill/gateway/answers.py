"""A request for an answer and the answer, whatever API they came by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnmill.gateway.messages import JsonObject, Message, pictures_in
from turnmill.gateway.pictures import Picture, require_allowed

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A conversation to continue, or a text."""

    digest: str
    """Digest of the body: a repeat has the same one."""

    messages: tuple[Message, ...] = ()
    tools: tuple[JsonObject, ...] = ()
    template: JsonObject = field(default_factory=dict)
    """Options of the chat template."""

    text: str | None = None
    """The text to continue instead of messages."""

    sampling: Mapping[str, object] = field(default_factory=dict)
    """Sampling parameters by vLLM's names."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_answers: int = 1
    pictures: tuple[Picture, ...] = field(init=False)
    """Those of all messages, in order."""

    def __post_init__(self) -> None:
        """Raises RequestError for more pictures than are allowed."""
        object.__setattr__(self, "pictures", pictures_in(self.messages))
        require_allowed(self.pictures)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the policy."""

    message: Message
    finish_reason: FinishReason
    num_prompt_tokens: int
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    stop: str | None = None
    """The stop string that ended it."""
