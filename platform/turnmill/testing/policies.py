"""Policies for tests that generate scripted responses."""

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast
from verl.workers.rollout.replica import TokenOutput

from turnmill.training.warm_start.tokenizer import build_tokenizer

LOG_PROB = -0.5
"""Log-prob of every token that a scripted policy generates."""


@dataclass(frozen=True)
class Request:
    """A request for one generation."""

    request_id: str
    prompt: str
    prompt_ids: tuple[int, ...]
    sampling_params: dict[str, Any]


Script = Iterable[str] | Callable[[Request], str]
"""Responses of a policy in order, or a function that returns the response to a request."""


class ScriptedPolicy:
    """Fake of verl's client of the inference engine: returns scripted responses and records every request."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Script) -> None:
        """Take a tokenizer and a script; an empty response has no token."""
        self.tokenizer = tokenizer
        self.requests: list[Request] = []
        self._answers = None if callable(script) else iter(script)
        self._answer = script if callable(script) else None

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: object
    ) -> TokenOutput:
        """Return the tokens of the next scripted response."""
        request = Request(request_id, self.tokenizer.decode(prompt_ids), tuple(prompt_ids), dict(sampling_params))
        self.requests.append(request)
        answer = next(self._answers) if self._answers is not None else self._answer(request)  # type: ignore[misc]
        token_ids = self.tokenizer.encode(answer, add_special_tokens=False)
        return TokenOutput(
            token_ids=token_ids,
            log_probs=[LOG_PROB] * len(token_ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each printable character, and the chat template of the tiny model."""
    return build_tokenizer(set(string.ascii_letters + string.digits + string.punctuation + " \n"))
