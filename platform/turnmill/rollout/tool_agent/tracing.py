"""Times of the stages of an HTTP call, from aiohttp's tracing."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp

# The names by which verl-tool logs the stages.
STAGES = {
    "client_queued_time_sec": ("queued", "dequeued"),
    "client_conn_create_time_sec": ("connecting", "connected"),
    "client_request_send_time_sec": ("start", "sent"),
    "response_await_time_sec": ("sent", "answered"),
    "response_read_time_sec": ("answered", "read"),
}


@dataclass(slots=True)
class CallStages:
    """The time at which each stage of one call was reached."""

    reached: dict[str, float] = field(default_factory=dict)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of every stage; 0 for those left out, such as connecting on an open connection."""
        at, done = self.reached, time.monotonic()
        at.setdefault("read", done)
        return {name: max(0.0, at[to] - at[start]) if start in at and to in at else 0.0
                for name, (start, to) in STAGES.items()}  # fmt: skip


def trace_config() -> aiohttp.TraceConfig:
    """Return a configuration that records the stages of a call in the CallStages given as its `trace_request_ctx`."""
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_record("start"))
    config.on_connection_queued_start.append(_record("queued"))
    config.on_connection_queued_end.append(_record("dequeued"))
    config.on_connection_create_start.append(_record("connecting"))
    config.on_connection_create_end.append(_record("connected"))
    config.on_request_chunk_sent.append(_record("sent"))
    config.on_request_end.append(_record("answered"))
    return config


def _record(stage: str) -> Callable[[aiohttp.ClientSession, SimpleNamespace, object], Awaitable[None]]:
    async def record(session: aiohttp.ClientSession, context: SimpleNamespace, parameters: object) -> None:
        stages = context.trace_request_ctx
        if isinstance(stages, CallStages):
            stages.reached[stage] = time.monotonic()

    return record
