"""Settings of a tool server; every field is a flag of `turnmill tool-server`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

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

    listener: int | None = Field(default=None, ge=0)
    """Descriptor of a listening socket from the process that started this one, in place of `port`."""

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

    max_obs_length: Count | None = None
    """Tokens of an observation in a completion, truncated and marked as in training, in place of `max_obs_characters`.

    The model server must have vLLM's /tokenize and /detokenize.
    """

    truncate_obs_side: Literal["left", "right", "middle"] = "left"
    """Part that a longer observation loses: `left` its beginning, `right` its end, `middle` its middle."""

    min_turns: int = Field(default=0, ge=0)
    """Number of first turns that always call a tool: a text without a stop string gets the first one."""

    enable_mtrl: bool = False
    """Wrap observations in chat turns; without stop strings, every response of the model is an action."""

    mtrl_role: str = Field(default="user", min_length=1)
    """Role of the chat turns that contain observations."""

    mtrl_sep: str | None = None
    """Text around an observation, with `{obs}` in its place; left out, the model server's chat template gives it."""

    turn_end_token: str = Field(default="<|im_end|>", min_length=1)
    """Text that ends a response; it is added before an observation in a chat turn if the response lacks it."""

    _keeps_objects: bool = PrivateAttr(default=False)

    @property
    def num_workers(self) -> int:
        """Worker processes: as for any server, but only `uvi_workers` if a tool keeps objects in its process."""
        return self.uvi_workers if self._keeps_objects else super().num_workers

    def keeping_objects(self) -> Self:
        """Return the settings for tools that keep objects of trajectories in their process."""
        settings = self.model_copy()
        settings._keeps_objects = True
        return settings

    @model_validator(mode="after")
    def _has_place_for_observations(self) -> Self:
        if self.mtrl_sep is not None and "{obs}" not in self.mtrl_sep:
            raise ValueError(
                f"--mtrl-sep ({self.mtrl_sep!r}) has no placeholder {{obs}} for the observation. Add it; "
                "strings that end an action go into --action-stop-tokens"
            )
        return self

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("--tls-cert-file and --tls-key-file belong together: name both files, or none")
        return self
