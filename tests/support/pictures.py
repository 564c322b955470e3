"""Picture files, and a model with a processor for them at the gateway."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image

from support.vision import VisionModel
from turnmill.gateway.engine import Sample
from turnmill.gateway.parsing import PlainParser
from turnmill.gateway.pictures import Picture
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.trajectory import Model

IMAGE = "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
"""What the tiny vision model reads of a picture."""


def picture_file(colour: str, size: tuple[int, int] = (64, 64), kind: str = "PNG") -> bytes:
    """Return a picture file of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, format=kind)
    return buffer.getvalue()


def base64_of(file: bytes) -> str:
    """Return a file in base64."""
    return base64.b64encode(file).decode()


def data_url(file: bytes, kind: str = "png") -> str:
    """Return a file as a data URL."""
    return f"data:image/{kind};base64,{base64_of(file)}"


class SeeingEngine:
    """Answers with scripted texts, and keeps the prompts as texts, their tokens and the colours of their pictures."""

    def __init__(self, model: VisionModel, script: Callable[[str], str]) -> None:
        self.prompts: list[str] = []
        self.prompt_ids: list[tuple[int, ...]] = []
        self.colours: list[list[Any]] = []
        self._tokenizer = model.tokenizer
        self._script = script

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return the scripted response."""
        self.prompts.append(self._tokenizer.decode(prompt_ids))
        self.prompt_ids.append(tuple(prompt_ids))
        self.colours.append([picture.image().getpixel((0, 0)) for picture in pictures])
        ids = self._tokenizer.encode(self._script(self.prompts[-1]), add_special_tokens=False)
        return Sample((*ids, self._tokenizer.eos_token_id), (-0.5,) * (len(ids) + 1))


def seeing_model(model: VisionModel, engine: SeeingEngine, *, eyes: bool = True) -> Model:
    """Return the tiny vision model at a gateway; without `eyes`, the same without its processor."""
    renderer = ChatRenderer(model.tokenizer, model.processor if eyes else None)
    end_ids = frozenset({model.tokenizer.eos_token_id})
    return Model("policy", engine, renderer, PlainParser(), end_ids, 100_000)
