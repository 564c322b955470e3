"""What tools answer, as text that the journal keeps."""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from verl.tools.schemas import ToolResponse


@dataclass(frozen=True, slots=True)
class Answered:
    """What a tool returned: its response, its reward and its metrics."""

    response: ToolResponse
    reward: float | None = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)


def spell(calls: Mapping[int, tuple[str, Answered | None]]) -> str:
    """The answers of one turn; empty where there is none yet."""
    told = [
        {"call": number, "tool": tool, **spelled}
        for number, (tool, answered) in sorted(calls.items())
        if answered is not None and (spelled := _spell_one(answered)) is not None
    ]
    return json.dumps(told) if told else ""


def read(text: str, number: int, tool: str) -> Answered | None:
    """The answer of a call in what `spell` made."""
    for told in json.loads(text) if text else ():
        if (told["call"], told["tool"]) == (number, tool):
            images = [_image(data) for data in told["images"]]
            given = {"text": told["text"]} | ({"image": images} if images else {})
            return Answered(ToolResponse(**given), told["reward"], told["metrics"])
    return None


def _spell_one(answered: Answered) -> dict[str, Any] | None:
    """None for what cannot be written down: such a call is made again after a restart."""
    images = answered.response.image or []
    if answered.response.video or not all(isinstance(image, Image.Image) for image in images):
        return None
    told = {
        "text": answered.response.text,
        "reward": answered.reward,
        "metrics": dict(answered.metrics or {}),
        "images": [_data(image) for image in images],
    }
    try:
        json.dumps(told)
    except (TypeError, ValueError):
        return None
    return told


def _data(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _image(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data)))
