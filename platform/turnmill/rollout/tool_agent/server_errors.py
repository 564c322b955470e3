"""How calls of tool servers fail, and what a client does about it."""

import json
import random
from collections.abc import Mapping
from typing import Any

import aiohttp

from turnmill.core.errors import (
    CallInProgressError,
    CallTimeoutError,
    LostWriteError,
    PoisonCallError,
    ToolCallConnectionError,
    ToolCallError,
    ToolCallLostWriteError,
    ToolCallPoisonError,
    ToolCallRefusedError,
    ToolCallTimeoutError,
)

INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 2.0

# Statuses of temporary errors of the server or a proxy.
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
REFUSING_STATUSES = frozenset({429, 503})
"""Statuses of a server or proxy that has not begun with a call."""


class RetryableError(ToolCallError):
    """A temporary error of a server, which may ask for seconds to wait before a retry."""

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class NotDeliveredError(ToolCallConnectionError):
    """The server did not get the call."""


class SilentError(ToolCallTimeoutError):
    """The server did not answer."""


class AtWorkError(ToolCallTimeoutError):
    """A server is still at work on the call."""


class TimeIsUpError(ToolCallTimeoutError):
    """A server has ended the call, as its time was up."""


_ERRORS_OF_WORK: Mapping[str, type[ToolCallTimeoutError]] = {
    CallInProgressError.cause: AtWorkError,
    CallTimeoutError.cause: TimeIsUpError,
}
"""Answers with 503 of servers that have begun with a call, by their cause."""

_FINAL_ERRORS: Mapping[str, type[ToolCallRefusedError]] = {
    PoisonCallError.cause: ToolCallPoisonError,
    LostWriteError.cause: ToolCallLostWriteError,
}
"""Errors of tool servers that end a trajectory, by their cause."""


def may_have_arrived(error: ToolCallError) -> bool:
    """Return True if the server may have executed the call."""
    if isinstance(error, RetryableError):
        return error.status not in REFUSING_STATUSES
    return not isinstance(error, NotDeliveredError)


def require_success(url: str, response: aiohttp.ClientResponse, raw: bytes) -> None:
    """Raise what a server's answer means, unless it is a result."""
    if response.status == 200:
        return
    message = f"{url} answered {response.status}: {raw[:300].decode(errors='replace')}"
    cause = _cause(raw)
    if response.status not in RETRYABLE_STATUSES:
        raise _FINAL_ERRORS.get(cause, ToolCallRefusedError)(message)
    if cause in _ERRORS_OF_WORK:
        raise _ERRORS_OF_WORK[cause](message)
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    raise RetryableError(message, response.status, retry_after)


def _cause(raw: bytes) -> str:
    """Return the cause of a failure as a tool server names it; empty if another program answered."""
    return str(json_object(raw).get("cause", ""))


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the object in a body; an empty one if it is something else."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def backoff_seconds(attempt: int, error: ToolCallError) -> float:
    """Return the time before a retry: exponential backoff with jitter, or longer if the server asks for it."""
    retry_after = error.retry_after if isinstance(error, RetryableError) else 0.0
    backed_off = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (attempt - 1))
    jittered: float = backed_off * random.uniform(0.5, 1.5)
    return max(retry_after, jittered)
