"""Placeholder tokens of pictures, by a model's processor."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from turnmill.gateway.errors import RequestError
from turnmill.gateway.pictures import Picture

MAX_LENGTHS = 4096
"""Pictures whose number of tokens is remembered, as a rewritten history has those of before."""

PLACEHOLDERS = ("image_token_id", "video_token_id", "audio_token_id")


class Processor(Protocol):
    """A processor of `transformers` for pictures and text."""

    image_token: str
    image_token_id: int

    def __call__(
        self, *, text: Sequence[str], images: Sequence[Image.Image], return_tensors: str
    ) -> Mapping[str, NDArray[np.int64]]:
        """Return the inputs of the model."""


class PictureTokenizer:
    """Puts as many placeholders into tokens as the model has for each picture."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self.image_id = int(processor.image_token_id)
        ids = (getattr(processor, name, None) for name in PLACEHOLDERS)
        self.placeholder_ids = frozenset(int(token) for token in ids if token is not None)
        """Tokens that stand for pictures, videos and sounds, and that nobody may write."""

        self._lengths: OrderedDict[str, int] = OrderedDict()

    def expanded(self, ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """Return tokens of rendered text, which have one placeholder for each picture, with all placeholders.

        Raises RequestError for a text that has placeholders itself, and for pictures that the template leaves out.
        """
        found = sum(token in self.placeholder_ids for token in ids)
        if found != len(pictures) or found != ids.count(self.image_id):
            raise RequestError(
                f"messages: the rendered conversation has places for pictures ({found}) where no picture is, or none "
                f"for some of its pictures ({len(pictures)}). Leave {self._processor.image_token!r} and other marks "
                "of media out of texts, and send pictures in roles that have them in the model's chat template."
            )
        lengths = map(self._length_of, pictures)
        return [each for token in ids for each in ([token] * next(lengths) if token == self.image_id else [token])]

    def _length_of(self, picture: Picture) -> int:
        length = self._lengths.pop(picture.digest, None)
        if length is None:
            length = self._count(picture)
        self._lengths[picture.digest] = length
        while len(self._lengths) > MAX_LENGTHS:
            self._lengths.popitem(last=False)
        return length

    def _count(self, picture: Picture) -> int:
        image = picture.image()
        try:
            inputs = self._processor(text=[self._processor.image_token], images=[image], return_tensors="pt")
        except (ValueError, TypeError) as error:
            raise RequestError(
                f"messages: the model's processor refuses a picture of {image.width} x {image.height} pixels: {error}"
            ) from error
        return int((inputs["input_ids"][0] == self.image_id).sum())


def collapsed(ids: Iterable[int], image_id: int) -> NDArray[np.int64]:
    """Return tokens with one placeholder for each picture."""
    given = np.fromiter(ids, dtype=np.int64)
    kept = np.ones(len(given), dtype=bool)
    kept[1:] = (given[1:] != image_id) | (given[:-1] != image_id)
    found: NDArray[np.int64] = given[kept]
    return found
