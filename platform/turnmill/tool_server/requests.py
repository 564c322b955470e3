"""Handling of all requests: timing, admission, and reading the body."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ModelT = TypeVar("ModelT", bound=BaseModel)

ARRIVED = "turnmill.arrived"


class BodyError(Exception):
    """An invalid body; `detail` has the format of FastAPI's own validation errors."""

    def __init__(self, detail: list[dict[str, object]]) -> None:
        super().__init__(detail)
        self.detail = detail


class BodyTooLargeError(Exception):
    """A body larger than the limit."""


class ProcessTimeMiddleware:
    """Adds `X-Process-Time`, in seconds, to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and add the header to its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[ARRIVED] = arrived = time.perf_counter()

        async def send_with_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = str(time.perf_counter() - arrived).encode("ascii")
                message["headers"] = [*message["headers"], (b"x-process-time", seconds)]
            await send(message)

        await self.app(scope, receive, send_with_time)


class Admission:
    """Limits the requests in progress; others wait in order of arrival."""

    def __init__(self, max_concurrent: int) -> None:
        self._semaphore = asyncio.Semaphore(max_concurrent)
        self.num_waiting = 0
        self.num_active = 0

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait until the request may start, and count it as active while the context lasts."""
        self.num_waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.num_waiting -= 1
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1
            self._semaphore.release()


async def read_body(request: Request, model: type[ModelT], *, max_bytes: int) -> ModelT:
    """Read and validate the body. pydantic parses it: json.loads accepts NaN and half surrogate pairs.

    Raises BodyError if it is invalid, BodyTooLargeError if it has more than `max_bytes`.
    """
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLargeError(f"The body is larger than {max_bytes} bytes: send fewer actions at once.")
        chunks.append(chunk)
    try:
        return model.model_validate_json(b"".join(chunks))
    except ValidationError as error:
        raise BodyError(_fastapi_errors(error)) from error


def _fastapi_errors(error: ValidationError) -> list[dict[str, object]]:
    malformed = error.errors(include_url=False, include_context=False, include_input=False)[0]["type"] == "json_invalid"
    # Values that JSON cannot express, such as NaN, are echoed as text.
    text = error.json(include_url=False, include_input=not malformed)
    problems = json.loads(text, parse_constant=str)
    return [problem | {"loc": ["body", *problem["loc"]]} for problem in problems]
