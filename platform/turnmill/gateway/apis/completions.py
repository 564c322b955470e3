"""OpenAI's Completions of plain text."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pydantic import Field

from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.apis.base import (
    DONE,
    MAX_ANSWERS,
    Api,
    Body,
    event,
    openai_error,
    openai_error_event,
    stop_strings,
)
from turnmill.gateway.apis.chat import usage
from turnmill.gateway.bodies import RequestBody
from turnmill.gateway.errors import RequestError
from turnmill.gateway.messages import JsonObject
from turnmill.gateway.rendering import ChatRenderer


class TextBody(Body):
    """A text to continue."""

    prompt: str | list[str] = Field(min_length=1)
    n: int | None = Field(default=None, ge=1, le=MAX_ANSWERS)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = None
    echo: bool | None = None
    stream_options: JsonObject | None = None


class TextCall:
    """One call of Completions."""

    def __init__(self, request: RequestBody, renderer: ChatRenderer) -> None:
        body = TextBody.read(request)
        if isinstance(body.prompt, list) and len(body.prompt) != 1:
            raise RequestError(f"prompt: {len(body.prompt)} texts in one request. Send a request for each.")
        self._prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
        self.stream = bool(body.stream)
        self.request = AnswerRequest(
            digest=request.digest,
            text=self._prompt,
            sampling=body.sampling(),
            max_tokens=body.max_tokens,
            stop=stop_strings(body.stop),
            num_answers=body.n or 1,
        )
        self._body = body
        self._renderer = renderer

    def response(self, answers: Sequence[Answer]) -> JsonObject:
        """Return the body of the response."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return {**self._head(), "choices": choices, "usage": usage(answers)}

    def events(self, answers: Sequence[Answer]) -> Iterator[str]:
        """Return the events of a streamed response."""
        for index, answer in enumerate(answers):
            yield event({**self._head(), "choices": [self._choice(index, answer)]})
        if (self._body.stream_options or {}).get("include_usage"):
            yield event({**self._head(), "choices": [], "usage": usage(answers)})
        yield DONE

    def _head(self) -> dict[str, object]:
        return {
            "id": f"cmpl-{self.request.digest}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._body.model,
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, object]:
        return {
            "index": index,
            "text": (self._prompt if self._body.echo else "") + answer.message["content"],
            "finish_reason": answer.finish_reason,
            "logprobs": self._log_probs(answer),
            "stop_reason": answer.stop,
        }

    def _log_probs(self, answer: Answer) -> JsonObject | None:
        if self._body.logprobs is None:
            return None
        tokens = [self._renderer.text_of([token], special=True) for token in answer.token_ids]
        return {
            "tokens": tokens,
            "token_logprobs": list(answer.log_probs),
            "top_logprobs": [{} for _ in tokens],
            "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
        }


COMPLETIONS = Api("/completions", "", TextCall, openai_error, openai_error_event)
