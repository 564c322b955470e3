"""Where the time of an HTTP call goes, as aiohttp tells it."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

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
class Timings:
    """When each stage of one call was reached, by its name."""

    reached: dict[str, float] = field(default_factory=dict)

    def seconds(self) -> dict[str, float]:
        """The time that every stage took; 0 for those left out, such as connecting on an open connection."""
        at, done = self.reached, time.monotonic()
        at.setdefault("read", done)
        return {name: max(0.0, at[to] - at[start]) if start in at and to in at else 0.0
                for name, (start, to) in STAGES.items()}  # fmt: skip


def tracing() -> aiohttp.TraceConfig:
    """Writes down the stages of every call into the Timings given as its `trace_request_ctx`."""
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_reach("start"))
    config.on_connection_queued_start.append(_reach("queued"))
    config.on_connection_queued_end.append(_reach("dequeued"))
    config.on_connection_create_start.append(_reach("connecting"))
    config.on_connection_create_end.append(_reach("connected"))
    config.on_request_chunk_sent.append(_reach("sent"))
    config.on_request_end.append(_reach("answered"))
    return config


def _reach(stage: str) -> Any:
    async def note(session: aiohttp.ClientSession, context: SimpleNamespace, parameters: Any) -> None:
        timings = context.trace_request_ctx
        if isinstance(timings, Timings):
            timings.reached[stage] = time.monotonic()

    return note
