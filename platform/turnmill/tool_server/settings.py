"""Settings of a tool server; every field is a flag of `turnmill tool-server`."""

import math
import os
from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings

REQUESTS_PER_WORKER = 256
"""Requests at once beyond which another worker helps."""

Seconds = Annotated[float, Field(gt=0, le=86400)]
Count = Annotated[int, Field(ge=1)]


class ServerSettings(Settings):
    """Settings of `turnmill tool-server`."""

    tool_type: tuple[str, ...] = ("base",)
    """Tools to serve; the first that takes an action gets it."""

    host: str = "0.0.0.0"
    """Address to listen on."""

    port: int = Field(default=5000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and logs it."""

    workers_per_tool: Count = 32
    """Calls of one request that one tool does at once."""

    max_concurrent_requests: Count = 1024
    """Requests that one worker does at once; others wait."""

    request_timeout: Seconds | None = None
    """Seconds that the calls of one request may take; left out, they take what their tools allow."""

    uvi_workers: Count = 1
    """Worker processes; more where `max_concurrent_requests` needs them, see `num_workers`."""

    done_if_invalid: bool = False
    """Whether an action that no tool takes ends its trajectory."""

    log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = "info"
    """Least level of what is logged."""

    log_interval: int = Field(default=30, ge=0)
    """Seconds between log lines with the numbers of calls; 0 for none."""

    enable_hashing: bool = True
    """Kept for verl-tool's scripts: shown in the JSON metrics, without effect."""

    thread_pool_size: int | None = Field(default=None, ge=1)
    """Kept for verl-tool's scripts: shown by /health, without effect."""

    redis: str | None = None
    """URL of the trajectory store; left out, one starts and goes with the server, and state ends with it."""

    run_name: str = Field(default="tool-server", min_length=1, max_length=200)
    """Name under which trajectories lie in the store: servers of one name share them."""

    lease_seconds: Seconds = 1.0
    """Seconds that a call stays claimed by a server that has died; then another one does it."""

    expiry_seconds: Seconds = 86400.0
    """Seconds after which a trajectory that nobody touches is forgotten."""

    finished_seconds: Seconds = 300.0
    """Seconds that the results of a finished trajectory stay, for calls that are repeated late."""

    store_bytes: Count = 1024**3
    """Memory of the store that comes with the server; beyond it calls fail with the cause `store_full`."""

    sandbox: Literal["fork", "process"] = "fork"
    """`fork`: a warm process with every barrier; `process`: plain processes with limits alone."""

    max_sandboxes: Count = 64
    """Runs in the sandbox at once, of one worker; others wait."""

    allow_missing_tools: bool = False
    """Start without the tools that cannot work here, as verl-tool does."""

    tool_settings: dict[str, str] = Field(default_factory=dict)
    """Settings of tools by name, such as RETRIEVER_URL; what is not here is looked up in the environment."""

    grace_seconds: Seconds = 8.0
    """Seconds that calls in flight have to end once the server is told to stop."""

    store_wait_seconds: Seconds = 15.0
    """Seconds that a call waits for the trajectory store where neither the request nor the client says less."""

    max_request_bytes: Count = 256 * 1024**2
    """Largest body of a request."""

    model_url: str | None = None
    """Base URL of an OpenAI-compatible server, such as http://localhost:8000/v1; opens /chat/completions."""

    model: str | None = None
    """Name of the model behind `model_url`; left out, the first that it lists."""

    model_api_key: str = "none"
    """Key for `model_url`."""

    model_timeout: Seconds = 600.0
    """Seconds that one generation may take."""

    max_turns: int = Field(default=5, ge=0)
    """Tool calls in one completion."""

    action_stop_tokens: tuple[str, ...] = ()
    """Strings that end an action in a completion, such as </python>."""

    max_obs_characters: Count = 8192
    """Characters of an observation that a completion takes up."""

    truncate_obs_side: Literal["left", "right"] = "left"
    """The side of a long observation that is cut off."""

    @property
    def num_workers(self) -> int:
        """Worker processes: at least `uvi_workers`, and one per 256 requests at once up to two or the processors."""
        wanted = math.ceil(self.max_concurrent_requests / REQUESTS_PER_WORKER)
        return max(self.uvi_workers, min(wanted, max(2, os.cpu_count() or 1)))

    @property
    def num_threads(self) -> int:
        """The `thread_pool_size` of /health: calls that one worker may have in progress."""
        return self.thread_pool_size or max(4 * self.max_concurrent_requests, 512)
