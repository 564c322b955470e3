"""OpenAI's `/chat/completions` and `/completions` with tool calls, as in verl-tool's eval service."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, field_validator, model_validator

from turnmill.core.errors import InferenceError, ToolError
from turnmill.tool_server.completion_loop import Completion, CompletionLoop
from turnmill.tool_server.requests import Admission, read_body
from turnmill.tool_server.responses import REFUSALS, body_schema, call_failure, failure, json_response
from turnmill.tool_server.schemas import MAX_ACTIONS, ApiModel, Detail
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.upstream import Messages, Upstream, UpstreamRefusedError

DEFAULT_MAX_TOKENS = 512
MAX_CHOICES = 128

# Fields that the loop handles itself; the others go to the model server unchanged.
HANDLED_FIELDS = frozenset(
    {"model", "messages", "prompt", "n", "stop", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
)


class CompletionsBody(ApiModel):
    """Fields of both endpoints; other fields, such as `seed`, are passed to the model server unchanged."""

    model_config = ConfigDict(extra="allow")

    model: str
    """Name of the served model."""

    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Number of completions per prompt."""

    stop: str | list[str] | None = None
    """Strings that end a completion; the server already knows those that end an action."""

    stream: bool | None = None
    """Must not be true, as a completion is known only after its tool calls."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per turn, by default 512."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Another name of `max_tokens`."""

    temperature: float | None = 1.0
    top_p: float | None = 1.0

    def sampling(self) -> dict[str, object]:
        """Return the fields to send to the model server in each turn."""
        rest = self.model_dump(exclude=set(HANDLED_FIELDS), exclude_none=True)
        return rest | {"max_tokens": self.max_tokens or self.max_completion_tokens or DEFAULT_MAX_TOKENS}

    def stop_strings(self) -> list[str]:
        """Return the strings that end a completion."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]


BodyT = TypeVar("BodyT", bound=CompletionsBody)


class ChatCompletionsBody(CompletionsBody):
    """A conversation to continue."""

    messages: list[dict[str, object]] = Field(min_length=1)
    """The conversation, with at least one user message."""

    @field_validator("messages")
    @classmethod
    def _has_a_user(cls, messages: list[dict[str, object]]) -> list[dict[str, object]]:
        if not any(message.get("role") == "user" for message in messages):
            raise ValueError("No user message found in the request.")
        return messages


class TextCompletionsBody(CompletionsBody):
    """Text to continue."""

    prompt: str | list[str] = Field(min_length=1)
    """One prompt, or several."""

    @model_validator(mode="after")
    def _at_most_max_completions(self) -> Self:
        num_prompts = 1 if isinstance(self.prompt, str) else len(self.prompt)
        if num_prompts * (self.n or 1) > MAX_ACTIONS:
            raise ValueError(f"{num_prompts} prompts with n={self.n or 1} are more than {MAX_ACTIONS} completions.")
        return self


class Completions:
    """Serves both endpoints."""

    def __init__(self, settings: ServerSettings, loop: CompletionLoop, upstream: Upstream) -> None:
        self._settings = settings
        self._loop = loop
        self._upstream = upstream
        self._admission = Admission(settings.max_concurrent_requests)

    async def chat(self, request: Request) -> Response:
        """Complete a conversation."""
        async with self._admission.enter():
            body = await self._read(request, ChatCompletionsBody)
            return await self._respond(body, [body.messages], _CHAT)

    async def text(self, request: Request) -> Response:
        """Complete a text."""
        async with self._admission.enter():
            body = await self._read(request, TextCompletionsBody)
            prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
            return await self._respond(body, prompts, _TEXT)

    async def models(self) -> Response:
        """List the only served model."""
        try:
            model = await self._upstream.model()
        except (InferenceError, UpstreamRefusedError) as error:
            return failure(str(error), InferenceError.cause)
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "turnmill"}]})

    async def _read(self, request: Request, model: type[BodyT]) -> BodyT:
        return await read_body(request, model, max_bytes=self._settings.max_request_bytes)

    async def _respond(
        self, body: CompletionsBody, prompts: Sequence[str | Messages], endpoint: "_Endpoint"
    ) -> Response:
        if body.stream:
            return JSONResponse(
                {"detail": "stream is not supported: a completion is whole when its tools have answered."}, 400
            )
        try:
            served = await self._upstream.model()
            if body.model != served:
                # The message and status that verl-tool's clients know.
                return JSONResponse({"detail": f"Internal server error: model mismatch: {body.model} != {served}"}, 500)
            completions = await self._complete(body, prompts)
        except UpstreamRefusedError as error:
            return JSONResponse({"detail": str(error)}, 400)
        except (ToolError, InferenceError) as error:
            return call_failure(error)
        return json_response(endpoint.response(served, completions, num_prompts=len(prompts)))

    async def _complete(self, body: CompletionsBody, prompts: Sequence[str | Messages]) -> list[Completion]:
        """Generate all choices concurrently, each as a trajectory of its own; the first error cancels the others."""
        sampling, stops = body.sampling(), body.stop_strings()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._loop.complete(prompt, sampling, stops))
                    for prompt in prompts
                    for _ in range(body.n or 1)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Format of an endpoint's responses."""

    prefix: str
    kind: str
    chat: bool

    def response(self, model: str, completions: Sequence[Completion], *, num_prompts: int) -> dict[str, object]:
        choices = [self._choice(index, completion) for index, completion in enumerate(completions)]
        # The choices of a prompt share it.
        prompt_tokens = sum(completion.prompt_tokens for completion in completions[:: len(completions) // num_prompts])
        completion_tokens = sum(completion.completion_tokens for completion in completions)
        return {
            "id": f"{self.prefix}-{uuid.uuid4()}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    def _choice(self, index: int, completion: Completion) -> dict[str, object]:
        content: dict[str, object] = {"text": completion.text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": completion.text}}
        return {"index": index, **content, "logprobs": None, "finish_reason": completion.finish_reason}


_CHAT = _Endpoint("chatcmpl", "chat.completion", chat=True)
_TEXT = _Endpoint("cmpl", "text_completion", chat=False)


def add_completions(app: FastAPI, completions: Completions) -> None:
    """Add the routes of OpenAI's API without /v1, as in verl-tool's eval service."""
    responses = REFUSALS | {
        400: {"model": Detail, "description": "The model server refuses the request, or it asks for a stream"},
        500: {"model": Detail, "description": "The model is not the one that is served"},
    }

    @app.post("/chat/completions", responses=responses, openapi_extra=body_schema(ChatCompletionsBody))
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation; observations of tools are part of the text."""
        return await completions.chat(request)

    @app.post("/completions", responses=responses, openapi_extra=body_schema(TextCompletionsBody))
    async def text_completions(request: Request) -> Response:
        """Continue a text; observations of tools are part of it."""
        return await completions.text(request)

    @app.get("/models", responses={503: REFUSALS[503]})
    async def models() -> Response:
        """List the served model."""
        return await completions.models()
