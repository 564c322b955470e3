"""Settings of a tool server; every field is a flag of `turnmill tool-server`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from turnmill.jobs.tool_server import Count, Seconds, ToolServerFlags


class ServerSettings(ToolServerFlags):
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

    enable_hashing: bool = True
    """Kept for verl-tool's scripts: reported in the JSON metrics, without effect."""

    redis: str | None = None
    """URL of the trajectory store; left out, the server starts one of its own, whose data ends with it."""

    run_name: str = Field(default="tool-server", min_length=1, max_length=200)
    """Name of the run in the store; servers with the same name share trajectories."""

    store_bytes: int = Field(default=1024**3, ge=1)
    """Memory of the server's own store in bytes; beyond it calls fail with cause `store_full`."""

    tool_settings: dict[str, str] = Field(default_factory=dict)
    """Settings of tools by name, such as RETRIEVER_URL; others are read from environment variables."""

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
