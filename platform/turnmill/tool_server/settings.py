"""Settings of a tool server; every field is a flag of `turnmill tool-server`."""

import math
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from turnmill.jobs.settings import Settings

REQUESTS_PER_WORKER = 256
"""Requests at once for which one worker suffices."""

Seconds = Annotated[float, Field(gt=0, le=86400)]
Count = Annotated[int, Field(ge=1)]


class ServerSettings(Settings):
    """Settings of `turnmill tool-server`."""

    tool_type: tuple[str, ...] = ("base",)
    """Tools to serve; an action goes to the first that accepts it."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    allow_host: tuple[str, ...] = ()
    """Further names with a dot under which clients may address the server."""

    token_file: Path | None = None
    """File with the token that clients must send."""

    tls_cert_file: Path | None = None
    """Certificate chain in PEM format: the server speaks HTTPS."""

    tls_key_file: Path | None = None
    """Private key of `tls_cert_file`."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for /metrics alone, which the server's own port then lacks."""

    port: int = Field(default=5000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and logs it."""

    workers_per_tool: Count = 32
    """Calls of one request that a tool executes at once."""

    max_concurrent_requests: Count = 1024
    """Requests that a worker executes at once; others wait."""

    request_timeout: Seconds | None = None
    """Seconds for the calls of one request; left out, only the tools limit them."""

    uvi_workers: Count = 1
    """Worker processes; more if `max_concurrent_requests` requires them, see `num_workers`."""

    done_if_invalid: bool = False
    """End a trajectory whose action no tool accepts."""

    log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = "info"
    """Lowest level of log messages."""

    log_interval: int = Field(default=30, ge=0)
    """Seconds between log lines with the numbers of calls; 0 for none."""

    enable_hashing: bool = True
    """Kept for verl-tool's scripts: reported in the JSON metrics, without effect."""

    thread_pool_size: int | None = Field(default=None, ge=1)
    """Synchronous tools that a worker runs at once; left out, see `num_threads`."""

    redis: str | None = None
    """URL of the trajectory store; left out, the server starts one of its own, whose data ends with it."""

    run_name: str = Field(default="tool-server", min_length=1, max_length=200)
    """Name of the run in the store; servers with the same name share trajectories."""

    lease_seconds: Seconds = 1.0
    """Seconds that a call stays claimed after its server has died; then another server executes it."""

    expiry_seconds: Seconds = 86400.0
    """Seconds without a call after which a trajectory is deleted."""

    finished_seconds: Seconds = 300.0
    """Seconds that results of a finished trajectory are kept, for late repeats of calls."""

    store_bytes: Count = 1024**3
    """Memory of the server's own store in bytes; beyond it calls fail with cause `store_full`."""

    sandbox: Literal["fork", "process"] = "fork"
    """`fork`: forked processes with all isolation; `process`: forked processes with limits only."""

    max_sandboxes: Count = 64
    """Runs of a worker in the sandbox at once; others wait."""

    sandbox_memory_mib: int | None = Field(default=None, ge=64)
    """Memory in MiB that runs of all workers in the sandbox may use together, by their limits; others wait.

    Left out, it is 80 % of the memory of the container, or of the machine.
    """

    allow_missing_tools: bool = False
    """Start without tools that do not work on this machine, as verl-tool does."""

    tool_settings: dict[str, str] = Field(default_factory=dict)
    """Settings of tools by name, such as RETRIEVER_URL; others are read from environment variables."""

    grace_seconds: Seconds = 8.0
    """Seconds for calls in flight to end when the server is stopped."""

    store_wait_seconds: Seconds = 15.0
    """Seconds that a call waits for the trajectory store, unless the request or the client has an earlier deadline."""

    max_request_bytes: Count = 256 * 1024**2
    """Maximum size of a request body in bytes."""

    model_url: str | None = None
    """Base URL of an OpenAI-compatible server, such as http://localhost:8000/v1; enables /chat/completions."""

    model: str | None = None
    """Name of the model at `model_url`; left out, the first in its list."""

    model_api_key: str = "none"
    """Key for `model_url`."""

    model_timeout: Seconds = 600.0
    """Seconds for one generation."""

    max_turns: int = Field(default=5, ge=0)
    """Tool calls per completion."""

    action_stop_tokens: tuple[str, ...] = ()
    """Stop strings that end an action in a completion, such as </python>."""

    max_obs_characters: Count = 8192
    """Characters of an observation in a completion; longer ones are truncated."""

    truncate_obs_side: Literal["left", "right"] = "left"
    """Part that a longer observation loses: `left` its beginning, `right` its end."""

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("--tls-cert-file and --tls-key-file belong together: name both files, or none")
        return self

    @property
    def num_workers(self) -> int:
        """Worker processes: `uvi_workers`, or more for over 256 requests at once if there are CPUs for them."""
        wanted = math.ceil(self.max_concurrent_requests / REQUESTS_PER_WORKER)
        return max(self.uvi_workers, min(wanted, max(2, os.cpu_count() or 1)))

    @property
    def num_threads(self) -> int:
        """Threads of a worker for synchronous tools: `thread_pool_size`, or four per request, but 512 at least."""
        return self.thread_pool_size or max(4 * self.max_concurrent_requests, 512)
