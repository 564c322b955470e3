"""Replies of tool servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnmill.core.errors import ToolCallError, ToolRaisedError
from turnmill.rollout.tool_agent.images import image_file
from turnmill.rollout.tool_agent.tracing import CallStages

MAX_INFO_CHARACTERS = 100_000
RAISED_TOOL_FIELDS = frozenset({"error", "tool_type"})
"""Fields of an observation after a tool raised an exception; `error` alone may be a tool's own field."""

Reply = tuple[dict[str, Any], Mapping[str, str], int]
"""Body, headers and size of an HTTP response."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The reply of a tool server to one action."""

    text: str
    done: bool
    valid: bool
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the observation other than its text."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Times and sizes of the call."""

    images: tuple[bytes, ...] = ()
    """Image files of the observation, in the order of their places in the text."""

    version: str = ""
    """Version of the trajectory after the call; empty if the server gives none."""


def parse_reply(reply: Reply, stages: CallStages, *, seconds: float) -> ToolReply:
    """Return the reply to one action. Raises ToolCallError if it does not have a tool server's format."""
    body, headers, size = reply
    try:
        (observation,), (done,), (valid,) = body["observations"], body["dones"], body["valids"]
        text, info, images = _split_observation(observation)
        reward = info.pop("reward", None)
        metrics = stages.stage_seconds() | {
            "session_request_time": seconds,
            "tool_processing_time_sec": float(body.get("processing_time_ms") or 0) / 1000,
            "tool_queue_time_sec": float(body.get("queue_time_ms") or 0) / 1000,
            "X-Process-Time_sec": float(headers.get("X-Process-Time") or 0),
            "response_size_mb": size / 1e6,
        }
        (version,) = body.get("versions") or ("",)
        number = None if reward is None else float(reward)
        parsed = ToolReply(text, bool(done), bool(valid), number, info, metrics, images, str(version))
    except (KeyError, TypeError, ValueError) as error:
        raise ToolCallError(f"A tool server answered something else than an observation: {error!r}") from error
    if info.keys() >= RAISED_TOOL_FIELDS:
        raise ToolRaisedError(f"A tool broke: {str(info['error'])[:300]}")
    return parsed


def _split_observation(observation: str | Mapping[str, Any]) -> tuple[str, dict[str, Any], tuple[bytes, ...]]:
    """Return the text of an observation, its other fields, and the image files among them."""
    if isinstance(observation, str):
        return observation, {}, ()
    text = observation["obs"]
    if not isinstance(text, str):
        raise TypeError(f"an observation of type {type(text).__name__}")
    rest = {key: value for key, value in observation.items() if key != "obs"}
    images = rest.get("image") or ()
    files = tuple(image_file(image) for image in ([images] if isinstance(images, str) else images))
    return text, {key: v[:MAX_INFO_CHARACTERS] if isinstance(v, str) else v for key, v in rest.items()}, files
