"""Tokens of an image, as the chat template of the model writes it."""

from typing import Any

import pytest
import torch
from PIL import Image

from turnmill.core.errors import AgentLoopError
from turnmill.rollout.tool_agent import images
from turnmill.rollout.tool_agent.images import ImageTokenizer


class Processor:
    """A processor whose chat template writes an image in this way."""

    def __init__(self, image: str) -> None:
        self.image = image

    def apply_chat_template(self, messages: list[dict[str, Any]], *, tokenize: bool) -> str:
        parts = messages[0]["content"]
        return f"<user>{''.join(self.image if part['type'] == 'image' else part['text'] for part in parts)}<end>"


@pytest.fixture(autouse=True)
def _characters_as_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(processor: Processor, *, text: list[str], images: list[Image.Image]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(character) for character in text[0]]])}

    monkeypatch.setattr(images, "build_multimodal_processor_inputs", tokenize)


def test_an_image_has_the_tokens_of_the_template_without_those_around_it():
    ids = ImageTokenizer(Processor("<img>")).tokens_of(Image.new("RGB", (2, 2)))

    assert "".join(map(chr, ids)) == "<img>"


@pytest.mark.parametrize("place", ["", " \n"])
def test_a_template_without_a_place_for_images_is_refused(place: str):
    with pytest.raises(AgentLoopError, match="no place for images in a message"):
        ImageTokenizer(Processor(place)).tokens_of(Image.new("RGB", (2, 2)))
