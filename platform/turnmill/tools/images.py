"""Crops of images, in sizes that vision models accept."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnmill.core.errors import ToolFailedError

if TYPE_CHECKING:
    from PIL import Image

MAX_SOURCE_PIXELS = 100_000_000
"""Maximum number of pixels; opening a larger image would take more than 300 MB of memory."""

_PADDING, _PADDING_PIXELS = 0.1, 600
_MAX_RATIO = 200


class UnusableCropError(ValueError):
    """The crop is empty or too narrow; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Sizes that a vision model accepts: sides are multiples of a patch, and the number of pixels has limits."""

    multiple: int
    min_pixels: int
    max_pixels: int

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Return the closest valid size in pixels; raises UnusableCropError for a narrow strip."""
        if max(width, height) > _MAX_RATIO * min(width, height):
            raise UnusableCropError(f"a part of {width}x{height} pixels is too narrow")
        sides = [max(self.multiple, round(side / self.multiple) * self.multiple) for side in (width, height)]
        if math.prod(sides) > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            sides = [max(self.multiple, self._whole(math.floor, side / scale)) for side in (width, height)]
        elif math.prod(sides) < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            sides = [self._whole(math.ceil, side * scale) for side in (width, height)]
        return sides[0], sides[1]

    def _whole(self, rounding: Callable[[float], int], side: float) -> int:
        return rounding(side / self.multiple) * self.multiple


def read_image(file: bytes) -> "Image.Image":
    """Decode an image; raises ToolFailedError if the file is not an image."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(file))
        if image.width * image.height > MAX_SOURCE_PIXELS:
            raise ToolFailedError(
                f"A picture of {image.width}x{image.height} pixels is too large: {MAX_SOURCE_PIXELS:,} are opened."
            )
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ToolFailedError(f"A picture of the trajectory cannot be opened: {error}.") from error


def crop(image: "Image.Image", box: Sequence[float]) -> "Image.Image":
    """Crop a box with a margin; the box is in pixels, or in fractions if no number exceeds 1."""
    sides = (image.width, image.height) * 2
    fractions = box if max(box) <= 1 else [number / side for number, side in zip(box, sides, strict=True)]
    margins = [min(_PADDING, _PADDING_PIXELS / side) for side in sides]
    left, top, right, bottom = (
        int(min(max(fraction + sign * margin, 0.0), 1.0) * side)
        for fraction, sign, margin, side in zip(fractions, (-1, -1, 1, 1), margins, sides, strict=True)
    )
    if right <= left or bottom <= top:
        raise UnusableCropError(f"the box {list(box)} is empty in a picture of {image.width}x{image.height}")
    return image.crop((left, top, right, bottom))


def resized(image: "Image.Image", sizes: SizeLimits) -> "Image.Image":
    """Return the image in a valid size."""
    size = sizes.fit(image.width, image.height)
    return image if size == image.size else image.resize(size)


def to_jpeg(image: "Image.Image") -> bytes:
    """Encode the image as JPEG."""
    image.save(buffer := io.BytesIO(), format="JPEG")
    return buffer.getvalue()
