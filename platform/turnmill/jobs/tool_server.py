"""Settings of tool servers that a job may give for the server of its own run."""

import math
import os
import re
from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings

REQUESTS_PER_WORKER = 256
"""Requests at once for which one worker suffices."""

Seconds = Annotated[float, Field(gt=0, le=86400)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def tool_names(text: str) -> tuple[str, ...]:
    """Parse names of tools: `a,b`, or a Python tuple of names, as verl-tool's scripts pass it."""
    return tuple(dict.fromkeys(name for name in re.split(r"[,\s()\[\]'\"]+", text) if name))


class ToolServerFlags(Settings):
    """How a tool server runs tools; every field is a flag of `turnmill tool-server`."""

    workers_per_tool: Count = 32
    """Calls of one request that a tool executes at once."""

    max_concurrent_requests: Count = 1024
    """Requests that a worker executes at once; others wait."""

    request_timeout: Seconds | None = None
    """Seconds for the calls of one request; left out, only the tools limit them."""

    uvi_workers: Count = 1
    """Worker processes; more if over 256 requests may run at once and there are processors for them."""

    done_if_invalid: bool = False
    """End a trajectory whose action no tool accepts."""

    log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = "info"
    """Lowest level of log messages."""

    log_interval: int = Field(default=30, ge=0, le=86_400)
    """Seconds between log lines with the numbers of calls; 0 for none."""

    thread_pool_size: Count | None = None
    """Synchronous tools that a worker runs at once; left out, four per concurrent request, and at least 512."""

    lease_seconds: Seconds = 1.0
    """Seconds that a call stays claimed after its server has died; then another server executes it."""

    expiry_seconds: Seconds = 86400.0
    """Seconds without a call after which a trajectory is deleted."""

    finished_seconds: Seconds = 300.0
    """Seconds that results of a finished trajectory are kept, for late repeats of calls."""

    sandbox: Literal["fork", "process"] = "fork"
    """`fork`: forked processes with all isolation; `process`: forked processes with limits only."""

    max_sandboxes: Count = 64
    """Runs of a worker in the sandbox at once; others wait."""

    sandbox_memory_mib: int | None = Field(default=None, ge=64, le=2**30)
    """Memory in MiB that runs of all workers in the sandbox may use together, by their limits; others wait.

    Left out, it is 80 % of the memory of the container, or of the machine.
    """

    allow_missing_tools: bool = False
    """Start without tools that do not work on this machine, as verl-tool does."""

    grace_seconds: Seconds = 8.0
    """Seconds for calls in flight to end when the server is stopped."""

    store_wait_seconds: Seconds = 15.0
    """Seconds that a call waits for the trajectory store, unless the request or the client has an earlier deadline."""

    max_request_bytes: int = Field(default=256 * 1024**2, ge=1, le=2**40)
    """Maximum size of a request body in bytes."""

    @property
    def num_workers(self) -> int:
        """Worker processes: `uvi_workers`, or more for over 256 requests at once if there are CPUs for them."""
        wanted = math.ceil(self.max_concurrent_requests / REQUESTS_PER_WORKER)
        return max(self.uvi_workers, min(wanted, max(2, os.cpu_count() or 1)))

    @property
    def num_threads(self) -> int:
        """Threads of a worker for synchronous tools: `thread_pool_size`, or four per request, but 512 at least."""
        return self.thread_pool_size or max(4 * self.max_concurrent_requests, 512)


class RunToolServer(ToolServerFlags):
    """The tool server that a run on one machine starts; servers of a team have their settings in its chart."""

    # One process: the trainer needs the cores, and calls mostly wait for sandboxes.
    max_concurrent_requests: Count = 256
    """Requests that a worker executes at once; others wait."""

    log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = "warning"
    """Lowest level of log messages in `logs/tool-server.log`."""

    log_interval: int = Field(default=0, ge=0, le=86_400)
    """Seconds between log lines with the numbers of calls; 0 for none."""

    settings: dict[str, str] = Field(default_factory=dict, max_length=256)
    """Settings of tools by name, such as RETRIEVER_URL; others are read from environment variables."""

    def arguments(self) -> list[str]:
        """Return the flags for `turnmill tool-server`, without the settings of tools."""
        flags = self.model_dump(exclude={"settings"}, exclude_none=True)
        return [f"--{name}={value}" for name, value in flags.items()]
