"""What happens around every request: its time, its place in the queue, its body."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ModelT = TypeVar("ModelT", bound=BaseModel)

ARRIVED = "turnmill.arrived"


class BodyError(Exception):
    """A body that is not what the endpoint takes; `detail` is in the form of FastAPI's own errors."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        super().__init__(detail)
        self.detail = detail


class BodyTooLargeError(Exception):
    """A body beyond the limit."""


class ProcessTime:
    """Adds `X-Process-Time`, in seconds, to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and the response back."""
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
    """Lets so many requests in at once; the others wait in the order in which they came."""

    def __init__(self, max_concurrent: int) -> None:
        self._slots = asyncio.Semaphore(max_concurrent)
        self.num_waiting = 0
        self.num_active = 0

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        self.num_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.num_waiting -= 1
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1
            self._slots.release()


async def read_body(request: Request, model: type[ModelT], *, max_bytes: int) -> ModelT:
    """The body as a model. pydantic reads it itself: json.loads lets NaN and half surrogate pairs through."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLargeError(f"The body is larger than {max_bytes} bytes: send fewer actions at once.")
        chunks.append(chunk)
    try:
        return model.model_validate_json(b"".join(chunks))
    except ValidationError as error:
        raise BodyError(_as_fastapi_has_it(error)) from error


def _as_fastapi_has_it(error: ValidationError) -> list[dict[str, Any]]:
    malformed = error.errors(include_url=False, include_context=False, include_input=False)[0]["type"] == "json_invalid"
    # What JSON has no word for, such as NaN, is echoed as text.
    problems = json.loads(error.json(include_url=False, include_input=not malformed), parse_constant=str)
    return [problem | {"loc": ["body", *problem["loc"]]} for problem in problems]
