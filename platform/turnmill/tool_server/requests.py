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

PIECE_SECONDS = 10.0
"""Time limit for the next piece of a body."""

BODY_SECONDS = 60.0
"""Time limit for a whole body."""

MAX_ECHOED_BYTES = 64 * 1024
"""Size of a body beyond which errors do not repeat its values."""


class BodyError(Exception):
    """An invalid body; `detail` has the format of FastAPI's own validation errors."""

    def __init__(self, detail: list[dict[str, object]]) -> None:
        super().__init__(detail)
        self.detail = detail


class BodyTooLargeError(Exception):
    """A body larger than the limit."""


class BodyTimeoutError(Exception):
    """A body that stopped arriving, or arrives too slowly."""


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

    Raises BodyError if it is invalid, BodyTooLargeError if it has more than `max_bytes`, and BodyTimeoutError if it
    does not arrive in time.
    """
    body = await _read_bytes(request, max_bytes)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise BodyError(_fastapi_errors(error, echo=len(body) <= MAX_ECHOED_BYTES)) from error


async def _read_bytes(request: Request, max_bytes: int) -> bytearray:
    too_large = BodyTooLargeError(f"The body is larger than {max_bytes} bytes: send fewer actions at once.")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        raise too_large
    body, loop = bytearray(), asyncio.get_running_loop()
    end = loop.time() + BODY_SECONDS
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(min(end, loop.time() + PIECE_SECONDS)) as limit:
                piece = await anext(pieces, None)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise BodyTimeoutError(
                f"The body did not arrive in time: {len(body)} bytes came. The next piece may take "
                f"{PIECE_SECONDS:g} s and the whole body {BODY_SECONDS:g} s: send it again, or fewer actions at once."
            ) from error
        if piece is None:
            return body
        body += piece
        if len(body) > max_bytes:
            raise too_large


def _fastapi_errors(error: ValidationError, *, echo: bool) -> list[dict[str, object]]:
    malformed = error.errors(include_url=False, include_context=False, include_input=False)[0]["type"] == "json_invalid"
    # Values that JSON cannot express, such as NaN, are echoed as text.
    text = error.json(include_url=False, include_input=echo and not malformed)
    problems = json.loads(text, parse_constant=str)
    return [problem | {"loc": ["body", *problem["loc"]]} for problem in problems]
