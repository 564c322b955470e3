"""Results of tool calls, and their encoding as JSON in the journal."""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from PIL import Image

from turnmill.rollout.multi_turn.verl_classes import ToolResponse


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The value a tool returned: its response, its reward and its metrics."""

    response: ToolResponse
    reward: float | None = 0.0
    metrics: Mapping[str, object] = field(default_factory=dict)


def encode_results(results: Mapping[int, tuple[str, ToolResult | None]]) -> str:
    """Encode the results of one turn as JSON, by the numbers of their calls; empty if there are none yet."""
    encoded = [
        entry
        for number, (tool, result) in sorted(results.items())
        if result is not None and (entry := _encode(number, tool, result)) is not None
    ]
    return f"[{', '.join(encoded)}]" if encoded else ""


def decode_result(encoded: str, number: int, tool: str) -> ToolResult | None:
    """Return the result of one call from the output of `encode_results`; None if it has none."""
    for entry in json.loads(encoded) if encoded else ():
        if (entry["call"], entry["tool"]) == (number, tool):
            images = [_decode_image(data) for data in entry["images"]]
            content = {"text": entry["text"]} | ({"image": images} if images else {})
            return ToolResult(ToolResponse(**content), entry["reward"], entry["metrics"])
    return None


def _encode(number: int, tool: str, result: ToolResult) -> str | None:
    """Return the entry of a result; None if it is not JSON: the call is then repeated after a restart."""
    attached = result.response.image or []
    images = [image for image in attached if isinstance(image, Image.Image)]
    if result.response.video or len(images) < len(attached):
        return None
    entry = {
        "call": number,
        "tool": tool,
        "text": result.response.text,
        "reward": result.reward,
        "metrics": dict(result.metrics or {}),
        "images": [_encode_image(image) for image in images],
    }
    try:
        return json.dumps(entry)
    except (TypeError, ValueError):
        return None


def _encode_image(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _decode_image(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data)))
