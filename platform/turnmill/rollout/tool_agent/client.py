"""Tool calls over HTTP: to any of several servers, again while there is time, once in effect."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from turnmill.core.errors import (
    ToolCallConnectionError,
    ToolCallError,
    ToolCallRefusedError,
    ToolCallTimeoutError,
    ToolRaisedError,
)
from turnmill.rollout.tool_agent.tracing import Timings, tracing

ENDPOINT = "/get_observation"
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.05, 2.0
CONNECT_SECONDS = 5.0
FINISH_SECONDS = 5.0
MAX_INFO_CHARACTERS = 100_000
# The server says that it cannot at present, or what stands before it does.
PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
BROKEN_TOOL = frozenset({"error", "tool_type"})
"""What a server's observation holds together where a tool raised; an `error` alone is some tool's own word."""

# All of C0 but tab, line feed and carriage return.
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One action of one trajectory."""

    trajectory_id: str
    action: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the tool is told besides; `call_id` makes a repeated call the same call."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool server answered."""

    text: str
    done: bool
    valid: bool
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the observation held besides its text."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Times and sizes of the call."""


def parse_urls(text: str) -> tuple[str, ...]:
    """The addresses of the endpoint, from addresses of servers or of endpoints with commas between them."""
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    return tuple(url if url.endswith(ENDPOINT) else f"{url}{ENDPOINT}" for url in urls)


def without_control_characters(value: Any) -> Any:
    """A value as it may be sent: no string in it holds a character that breaks parsers and terminals."""
    if isinstance(value, str):
        return value.translate(_CONTROL)
    if isinstance(value, Mapping):
        return {without_control_characters(key): without_control_characters(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_control_characters(item) for item in value]
    return value


class ToolServerClient:
    """Calls tools on equal servers; one that fails is passed over for the next."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float, max_retries: int, max_connections: int) -> None:
        self.urls = tuple(urls)
        self._timeout = timeout_seconds
        self._max_retries = max_retries
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._next = 0
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

    async def call(self, request: ToolRequest) -> ToolAnswer:
        """Have an action done. Raises ToolCallError when the call's time or its tries are used up."""
        started = time.monotonic()
        deadline, left = started + self._timeout, self._timeout
        server = self._next = (self._next + 1) % len(self.urls)
        for attempt in range(self._max_retries + 1):
            # A server that hangs must leave time for another.
            seconds = left if attempt == self._max_retries else max(left / 2, min(left, 1.0))
            timings = Timings()
            try:
                answer = await self._post(self.urls[server], request, seconds, timings)
                return _read(answer, timings, seconds=time.monotonic() - started)
            except (ToolCallRefusedError, ToolRaisedError):
                raise
            except ToolCallError as error:
                wait = _wait_before(attempt + 1, error)
                if attempt == self._max_retries or time.monotonic() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)
                left = deadline - time.monotonic()
                if left <= 0:  # To aiohttp that is no limit.
                    raise
                self.num_retries += 1
                server = (server + 1) % len(self.urls)
        raise AssertionError("the last try returns or raises")

    async def finish(self, trajectory_id: str) -> bool:
        """Let the servers forget a trajectory; tells whether one of them did."""
        request = ToolRequest(trajectory_id, "")
        self._next = (self._next + 1) % len(self.urls)
        for offset in range(min(2, len(self.urls))):
            url = self.urls[(self._next + offset) % len(self.urls)]
            try:
                await self._post(url, request, min(FINISH_SECONDS, self._timeout), Timings(), finish=True)
            except ToolCallError:
                continue
            return True
        return False

    async def _post(
        self, url: str, request: ToolRequest, seconds: float, timings: Timings, *, finish: bool = False
    ) -> tuple[dict[str, Any], Mapping[str, str], int]:
        body = {
            "trajectory_ids": [request.trajectory_id],
            "actions": [request.action],
            "finish": [finish],
            "is_last_step": [finish],
            "extra_fields": [dict(request.extra)],
        }
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
        try:
            async with self._connected().post(
                url, json=without_control_characters(body), timeout=timeout, trace_request_ctx=timings
            ) as response:
                raw = await response.read()
                _require_success(url, response, raw)
                return await response.json(content_type=None), response.headers, len(raw)
        except aiohttp.ConnectionTimeoutError as error:
            raise ToolCallConnectionError(f"{url} took no connection: {error}") from error
        except TimeoutError as error:
            raise ToolCallTimeoutError(f"{url} did not answer within {seconds:.3g} s") from error
        except ValueError as error:
            raise ToolCallError(f"{url} answered no JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ToolCallConnectionError(f"{url}: {error or type(error).__name__}") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._max_connections, ttl_dns_cache=10)
            self._session = aiohttp.ClientSession(connector=connector, trace_configs=[tracing()])
        return self._session


class _PassingError(ToolCallError):
    """The server cannot at present; `retry_after` is when it wants to be asked again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _require_success(url: str, response: aiohttp.ClientResponse, raw: bytes) -> None:
    if response.status == 200:
        return
    message = f"{url} answered {response.status}: {raw[:300].decode(errors='replace')}"
    if response.status not in PASSING_STATUSES:
        raise ToolCallRefusedError(message)
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    raise _PassingError(message, retry_after)


def _wait_before(attempt: int, error: ToolCallError) -> float:
    """Longer from try to try, with some chance in it so that callers do not come back all at once."""
    asked = error.retry_after if isinstance(error, _PassingError) else 0.0
    backed_off = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
    return max(asked, backed_off * random.uniform(0.5, 1.5))


def _read(answer: tuple[dict[str, Any], Mapping[str, str], int], timings: Timings, *, seconds: float) -> ToolAnswer:
    """The answer to one action; raises ToolCallError where it is not what a tool server answers."""
    body, headers, size = answer
    try:
        (observation,), (done,), (valid,) = body["observations"], body["dones"], body["valids"]
        text, info = _text_of(observation)
        reward = info.pop("reward", None)
        metrics = timings.seconds() | {
            "session_request_time": seconds,
            "tool_processing_time_sec": float(body.get("processing_time_ms") or 0) / 1000,
            "tool_queue_time_sec": float(body.get("queue_time_ms") or 0) / 1000,
            "X-Process-Time_sec": float(headers.get("X-Process-Time") or 0),
            "response_size_mb": size / 1e6,
        }
        read = ToolAnswer(text, bool(done), bool(valid), None if reward is None else float(reward), info, metrics)
    except (KeyError, TypeError, ValueError) as error:
        raise ToolCallError(f"A tool server answered something else than an observation: {error!r}") from error
    if info.keys() >= BROKEN_TOOL:
        raise ToolRaisedError(f"A tool broke: {str(info['error'])[:300]}")
    return read


def _text_of(observation: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(observation, str):
        return observation, {}
    text = observation["obs"]
    if not isinstance(text, str):
        raise TypeError(f"an observation of type {type(text).__name__}")
    rest = {key: value for key, value in observation.items() if key != "obs"}
    return text, {key: v[:MAX_INFO_CHARACTERS] if isinstance(v, str) else v for key, v in rest.items()}
