"""Client of tool servers: calls go to any of several servers with retries, and take effect once."""

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from turnmill.core.errors import (
    LostWriteError,
    PoisonCallError,
    ToolCallConnectionError,
    ToolCallError,
    ToolCallLostWriteError,
    ToolCallPoisonError,
    ToolCallRefusedError,
    ToolCallTimeoutError,
    ToolRaisedError,
)
from turnmill.core.loop_time import LoopTime
from turnmill.rollout.tool_agent.replies import Reply, ToolReply, parse_reply
from turnmill.rollout.tool_agent.tracing import CallStages, trace_config

ENDPOINT, HEALTH = "/get_observation", "/health"

TOKEN, TOKEN_URL = "TURNMILL_TOOL_SERVER_TOKEN", "TURNMILL_TOOL_SERVER_URL"
"""Environment variables with the token that the tool servers require, and with the servers that it is for: a team's.

Without the latter it is for all servers that a job names.
"""

INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 2.0
CONNECT_SECONDS = 5.0
FINISH_SECONDS = 5.0
HEALTH_SECONDS = 5.0
NO_LIMIT = aiohttp.ClientTimeout(total=None)
# Statuses of temporary errors of the server or a proxy.
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
REFUSING_STATUSES = frozenset({429, 503})
"""Statuses of a server or proxy that has not begun with a call."""

# All of C0 but tab, line feed and carriage return.
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


_FINAL_ERRORS: Mapping[str, type[ToolCallRefusedError]] = {
    PoisonCallError.cause: ToolCallPoisonError,
    LostWriteError.cause: ToolCallLostWriteError,
}
"""Errors of tool servers that end a trajectory, by their cause."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One action of one trajectory."""

    trajectory_id: str
    action: str
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields for the tool; a retry has the same `call_id`."""


def parse_urls(text: str) -> tuple[str, ...]:
    """Return the endpoint's addresses from comma-separated addresses of servers or of endpoints."""
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    return tuple(url if url.endswith(ENDPOINT) else f"{url}{ENDPOINT}" for url in urls)


def without_control_characters(value: object) -> object:
    """Return a JSON value without the control characters that break parsers and terminals."""
    if isinstance(value, str):
        return value.translate(_CONTROL)
    if isinstance(value, Mapping):
        return {without_control_characters(key): without_control_characters(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_control_characters(item) for item in value]
    return value


def authorization(url: str) -> dict[str, str]:
    """Return the header with the token for a server; none for one that the token is not for."""
    token, servers = os.environ.get(TOKEN), os.environ.get(TOKEN_URL)
    if not token or (servers and url not in parse_urls(servers)):
        return {}
    return {"Authorization": f"Bearer {token}"}


class ToolServerClient:
    """Calls tools on equal servers; a retry goes to the next one."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float, max_retries: int, max_connections: int) -> None:
        self.urls = tuple(urls)
        self._timeout = timeout_seconds
        self._max_retries = max_retries
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._next = 0
        self._knows_call_ids: dict[str, bool] = {}
        self.num_retries = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, request: ToolRequest) -> ToolReply:
        """Return the reply to an action. Raises ToolCallError when the timeout or the retries are used up.

        What no server took, as nobody listened or it said that it had no room or no store, is sent again until the
        timeout, and does not count as a retry: an outage ends calls by their time alone. A server that does not know
        calls by their `call_id` would execute a repeat again. So a call to it has the whole timeout, and is sent again
        only if the server did not get it.
        """
        started, left = time.monotonic(), LoopTime(self._timeout)
        server = self._next = (self._next + 1) % len(self.urls)
        attempt = taken = 0
        while True:
            # A server that hangs must leave time for another.
            seconds = left.seconds if taken == self._max_retries else max(left.seconds / 2, min(left.seconds, 1.0))
            stages, url, repeatable = CallStages(), self.urls[server], True
            try:
                repeatable = await self._is_repeatable(url, left, min(HEALTH_SECONDS, seconds))
                seconds = seconds if repeatable else left.seconds
                reply = await self._post(url, request, left, seconds, stages, reuse_connection=repeatable)
                return parse_reply(reply, stages, seconds=time.monotonic() - started)
            except (ToolCallRefusedError, ToolRaisedError):
                raise
            except ToolCallError as error:
                may_have_arrived = _may_have_arrived(error)
                if may_have_arrived and (not repeatable or taken == self._max_retries):
                    raise
                attempt, taken = attempt + 1, taken + may_have_arrived
                backoff = _backoff_seconds(attempt, error)
                if backoff >= left.seconds:
                    raise
                await left.sleep(backoff)
                self.num_retries += 1
                server = (server + 1) % len(self.urls)

    async def finish(self, trajectory_id: str) -> bool:
        """Release a trajectory at the servers; return whether one of them confirmed it."""
        request = ToolRequest(trajectory_id, "")
        self._next = (self._next + 1) % len(self.urls)
        for offset in range(min(2, len(self.urls))):
            url = self.urls[(self._next + offset) % len(self.urls)]
            seconds = min(FINISH_SECONDS, self._timeout)
            try:
                await self._post(url, request, LoopTime(seconds), seconds, CallStages(), finish=True)
            except ToolCallError:
                continue
            return True
        return False

    async def _is_repeatable(self, url: str, left: LoopTime, seconds: float) -> bool:
        """Return whether a server executes a call once, however often it gets it. Raises ToolCallError."""
        if url not in self._knows_call_ids:
            health = url.removesuffix(ENDPOINT) + HEALTH

            async def ask() -> tuple[int, bytes]:
                async with self._open_session().get(health, headers=authorization(url), timeout=NO_LIMIT) as response:
                    return response.status, await response.read()

            try:
                status, raw = await left.wait(ask(), seconds)
            except (aiohttp.ClientError, OSError) as error:
                raise _NotDeliveredError(f"{health}: {str(error) or type(error).__name__}") from error
            if status in RETRYABLE_STATUSES:
                raise _NotDeliveredError(f"{health} answered {status}")
            self._knows_call_ids[url] = _json_object(raw).get("call_ids") is True
        return self._knows_call_ids[url]

    async def _post(
        self,
        url: str,
        request: ToolRequest,
        left: LoopTime,
        seconds: float,
        stages: CallStages,
        *,
        finish: bool = False,
        reuse_connection: bool = True,
    ) -> Reply:
        body = {
            "trajectory_ids": [request.trajectory_id],
            "actions": [request.action],
            "finish": [finish],
            "is_last_step": [finish],
            "extra_fields": [dict(request.extra)],
        }

        async def exchange() -> Reply:
            async with self._open_session().post(
                url,
                json=without_control_characters(body),
                # A server may close a connection that waits, just as a call is sent over it.
                headers=authorization(url) | ({} if reuse_connection else {"Connection": "close"}),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_SECONDS, seconds)),
                trace_request_ctx=stages,
            ) as response:
                raw = await response.read()
                _require_success(url, response, raw)
                return await response.json(content_type=None), response.headers, len(raw)

        try:
            return await left.wait(exchange(), seconds)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise _NotDeliveredError(f"{url} took no connection: {error}") from error
        except TimeoutError as error:
            raise ToolCallTimeoutError(f"{url} did not answer within {seconds:.3g} s") from error
        except ValueError as error:
            raise ToolCallError(f"{url} answered no JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ToolCallConnectionError(f"{url}: {str(error) or type(error).__name__}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._max_connections, ttl_dns_cache=10)
            self._session = aiohttp.ClientSession(connector=connector, trace_configs=[trace_config()])
        return self._session


class _RetryableError(ToolCallError):
    """A temporary error of a server, which may ask for seconds to wait before a retry."""

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class _NotDeliveredError(ToolCallConnectionError):
    """The server did not get the call."""


def _may_have_arrived(error: ToolCallError) -> bool:
    """Return True if the server may have executed the call."""
    if isinstance(error, _RetryableError):
        return error.status not in REFUSING_STATUSES
    return not isinstance(error, _NotDeliveredError)


def _require_success(url: str, response: aiohttp.ClientResponse, raw: bytes) -> None:
    if response.status == 200:
        return
    message = f"{url} answered {response.status}: {raw[:300].decode(errors='replace')}"
    if response.status not in RETRYABLE_STATUSES:
        raise _FINAL_ERRORS.get(_cause(raw), ToolCallRefusedError)(message)
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    raise _RetryableError(message, response.status, retry_after)


def _cause(raw: bytes) -> str:
    """Return the cause of a failure as a tool server names it; empty if another program answered."""
    return str(_json_object(raw).get("cause", ""))


def _json_object(raw: bytes) -> dict[str, Any]:
    """Return the object in a body; an empty one if it is something else."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _backoff_seconds(attempt: int, error: ToolCallError) -> float:
    """Return the time before a retry: exponential backoff with jitter, or longer if the server asks for it."""
    retry_after = error.retry_after if isinstance(error, _RetryableError) else 0.0
    backed_off = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (attempt - 1))
    jittered: float = backed_off * random.uniform(0.5, 1.5)
    return max(retry_after, jittered)
