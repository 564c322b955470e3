"""Client of tool servers: calls go to any of several servers with retries, and take effect once."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp

from turnmill.core.errors import ToolCallConnectionError, ToolCallError, ToolCallRefusedError, ToolRaisedError
from turnmill.core.loop_time import LoopTime
from turnmill.rollout.tool_agent.replies import Reply, ToolReply, parse_reply
from turnmill.rollout.tool_agent.server_errors import (
    RETRYABLE_STATUSES,
    AtWorkError,
    NotDeliveredError,
    SilentError,
    TimeIsUpError,
    backoff_seconds,
    json_object,
    may_have_arrived,
    require_success,
)
from turnmill.rollout.tool_agent.tracing import CallStages, trace_config

ENDPOINT, HEALTH = "/get_observation", "/health"

TOKEN, TOKEN_URL = "TURNMILL_TOOL_SERVER_TOKEN", "TURNMILL_TOOL_SERVER_URL"
"""Environment variables with the token that the tool servers require, and with the servers that it is for: a team's.

Without the latter it is for all servers that a job names.
"""

CONNECT_SECONDS = 5.0
FINISH_SECONDS = 5.0
HEALTH_SECONDS = 5.0

ANSWER_SECONDS = 10.0
"""How long a server may work on a call before it says so: one that hangs must leave time for another."""

SILENCE_SECONDS = 2.0
"""How much later an answer may come, as a busy machine stands still now and then."""

NO_LIMIT = aiohttp.ClientTimeout(total=None)
# All of C0 but tab, line feed and carriage return.
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


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
    """Calls tools on equal servers; a retry goes to the next one.

    `timeout_seconds` bounds the work on a call, `outage_seconds` the time in which no server can do it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_seconds: float,
        outage_seconds: float,
        max_retries: int,
        max_connections: int,
    ) -> None:
        self.urls = tuple(urls)
        self._timeout = timeout_seconds
        self._outage = outage_seconds
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
        """Return the reply to an action. Raises ToolCallError when times or retries are used up.

        A server says every few seconds that it is still at work, which the timeout bounds, or that it waits for its
        store. The time of the latter, of broken connections, and of servers that take no call counts as an outage; what
        no server took is no retry. One that says nothing, but answers when asked for its health, has lost the call:
        that is time at work. A server that does not know calls by their `call_id` would execute a repeat again. So a
        call to it has the whole timeout, and is sent again only if the server did not get it.
        """
        started, left, outage = time.monotonic(), self._timeout, self._outage
        server = self._next = (self._next + 1) % len(self.urls)
        attempt = taken = 0
        while True:
            stages, clock, url, repeatable = CallStages(), LoopTime(math.inf), self.urls[server], True
            seconds = self._seconds_of_attempt(left, taken)
            try:
                repeatable = await self._is_repeatable(url, clock)
                if repeatable:
                    limits = {"X-Answer-Seconds": _header(seconds), "X-Deadline-Seconds": _header(left)}
                    reply = await self._post(url, request, clock, seconds + SILENCE_SECONDS, stages, headers=limits)
                else:
                    # A server may close a connection that waits, just as a call is sent over it.
                    reply = await self._post(url, request, clock, left, stages, headers={"Connection": "close"})
                return parse_reply(reply, stages, seconds=time.monotonic() - started)
            except (ToolCallRefusedError, ToolRaisedError, TimeIsUpError):
                raise
            except ToolCallError as failure:
                error = failure
            if isinstance(error, SilentError) and repeatable and not await self._is_well(url, clock.passed):
                error = NotDeliveredError(str(error))
            if may_have_arrived(error) and not isinstance(error, AtWorkError):
                if not repeatable or taken == self._max_retries:
                    raise error
                taken += 1
            attempt += 1
            pause = max(0.0, backoff_seconds(attempt, error) - clock.passed)
            if isinstance(error, AtWorkError | SilentError):
                # What came later than it was due may have come from elsewhere.
                left -= min(clock.passed, seconds) + pause
            else:
                outage -= clock.passed + pause
            if left <= 0 or outage <= 0:
                raise error
            await clock.sleep(pause)
            if not isinstance(error, AtWorkError):
                self.num_retries += 1
                server = (server + 1) % len(self.urls)

    def _seconds_of_attempt(self, left: float, taken: int) -> float:
        """Return how long a server may work on a call before it says so, if so many servers have taken it before."""
        if taken == self._max_retries:
            return left
        return min(ANSWER_SECONDS, left if taken else max(left / 2, min(left, 1.0)))

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

    async def _is_repeatable(self, url: str, clock: LoopTime) -> bool:
        """Return whether a server executes a call once, however often it gets it. Raises ToolCallError."""
        if url not in self._knows_call_ids:
            self._knows_call_ids[url] = (await self._health(url, clock)).get("call_ids") is True
        return self._knows_call_ids[url]

    async def _is_well(self, url: str, seconds: float) -> bool:
        """Return whether a server is there, and has been for so many seconds."""
        try:
            health = await self._health(url, LoopTime(SILENCE_SECONDS))
        except ToolCallError:
            return False
        uptime = health.get("uptime_seconds")
        return not isinstance(uptime, int | float) or uptime >= seconds

    async def _health(self, url: str, clock: LoopTime) -> Mapping[str, object]:
        health = url.removesuffix(ENDPOINT) + HEALTH

        async def ask() -> tuple[int, bytes]:
            async with self._open_session().get(health, headers=authorization(url), timeout=NO_LIMIT) as response:
                return response.status, await response.read()

        try:
            status, raw = await clock.wait(ask(), HEALTH_SECONDS)
        except (aiohttp.ClientError, OSError) as error:
            raise NotDeliveredError(f"{health}: {str(error) or type(error).__name__}") from error
        if status in RETRYABLE_STATUSES:
            raise NotDeliveredError(f"{health} answered {status}")
        return json_object(raw)

    async def _post(
        self,
        url: str,
        request: ToolRequest,
        clock: LoopTime,
        seconds: float,
        stages: CallStages,
        *,
        finish: bool = False,
        headers: Mapping[str, str] | None = None,
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
                headers=authorization(url) | dict(headers or {}),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_SECONDS, seconds)),
                trace_request_ctx=stages,
            ) as response:
                raw = await response.read()
                require_success(url, response, raw)
                return await response.json(content_type=None), response.headers, len(raw)

        try:
            return await clock.wait(exchange(), seconds)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise NotDeliveredError(f"{url} took no connection: {error}") from error
        except TimeoutError as error:
            raise SilentError(f"{url} did not answer within {seconds:.3g} s") from error
        except ValueError as error:
            raise ToolCallError(f"{url} answered no JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ToolCallConnectionError(f"{url}: {str(error) or type(error).__name__}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._max_connections, ttl_dns_cache=10)
            self._session = aiohttp.ClientSession(connector=connector, trace_configs=[trace_config()])
        return self._session


def _header(seconds: float) -> str:
    return f"{max(seconds, 0.001):.3f}"
