"""Policies for tests: they say what they are told to say."""

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast
from verl.workers.rollout.replica import TokenOutput

from turnmill.training.warm_start.tokenizer import build_tokenizer

LOG_PROB = -0.5
"""Of every token that a scripted policy says."""


@dataclass(frozen=True)
class Request:
    """What an agent loop asked of a policy."""

    request_id: str
    prompt: str
    prompt_ids: tuple[int, ...]
    sampling_params: dict[str, Any]


class ScriptedPolicy:
    """Stands where verl's client of the inference engine would: answers by a script and remembers what it was asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Iterable[str] | Callable[[Request], str]) -> None:
        """`script`: the answers in turn, or what answers a request; an empty answer has no token."""
        self.tokenizer = tokenizer
        self.requests: list[Request] = []
        self._answers = None if callable(script) else iter(script)
        self._answer = script if callable(script) else None

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Say the next thing of the script."""
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
    """A tokenizer that gives every printable character back, and the chat template of the tiny model."""
    return build_tokenizer(set(string.ascii_letters + string.digits + string.punctuation + " \n"))
