"""Pictures in messages: read from data URLs within limits, and compared by their content."""

import base64
import binascii
import hashlib
import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageOps, UnidentifiedImageError

from turnmill.gateway.errors import RequestError

MAX_PICTURES = 100
"""Pictures in one request, as agents send them all with each."""

MAX_FILE_BYTES = 20 * 1024**2
MAX_PIXELS, MAX_ALL_PIXELS = 50_000_000, 200_000_000
"""Pixels of one picture and of all in a request, which take three bytes each in memory."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that both OpenAI's and Anthropic's APIs take; Pillow has others, some of which run programs."""

_BROKEN = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error,
           zlib.error, Image.DecompressionBombError)  # fmt: skip
"""What Pillow raises for files that are broken or too large."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture file; two with the same bytes are equal."""

    digest: str
    file: bytes = field(compare=False, repr=False)
    kind: str = field(compare=False)
    """Format of the file in lower case, such as `png`."""

    num_pixels: int = field(compare=False)

    def image(self) -> Image.Image:
        """Return the picture upright, in RGB and before white, as vLLM reads files. Raises RequestError if broken."""
        try:
            with Image.open(io.BytesIO(self.file), formats=FORMATS) as opened:
                return _rgb(_upright(opened))
        except _BROKEN as error:
            raise RequestError(
                f"messages: a picture cannot be read, its {self.kind} file is broken: {error}"
            ) from error

    def data_url(self) -> str:
        """Return the file as a data URL."""
        return f"data:image/{self.kind};base64,{base64.b64encode(self.file).decode()}"


def read_picture(url: object) -> Picture:
    """Return the picture in a data URL, of which only the head is read. Raises RequestError."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (head[:5].lower() == "data:" and head.endswith(";base64") and comma):
        raise RequestError(
            f"messages: the address of a picture is {_start(url)}, and the gateway fetches nothing: "
            "send the file as a data URL in base64, `data:image/png;base64,...`."
        )
    try:
        file = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"messages: the base64 of a picture is broken: {error}.") from error
    if len(file) > MAX_FILE_BYTES:
        raise RequestError(
            f"messages: a picture has {len(file):,} bytes, and {MAX_FILE_BYTES:,} are allowed: send a smaller one."
        )
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as opened:
            width, height = opened.size
            kind = str(opened.format).lower()
    except UnidentifiedImageError as error:
        raise RequestError(
            f"messages: a picture of {len(file):,} bytes is no file of the formats {', '.join(FORMATS)}: convert it."
        ) from error
    except _BROKEN as error:
        raise RequestError(f"messages: a picture of {len(file):,} bytes cannot be read: {error}") from error
    if width * height > MAX_PIXELS:
        raise RequestError(
            f"messages: a picture has {width:,} x {height:,} pixels, and {MAX_PIXELS:,} in all are allowed: "
            "send a smaller one."
        )
    return Picture(hashlib.blake2b(file, digest_size=16).hexdigest(), file, kind, width * height)


def require_allowed(pictures: Sequence[Picture]) -> None:
    """Raise RequestError for more pictures than one request may have, or larger ones."""
    if len(pictures) > MAX_PICTURES:
        raise RequestError(
            f"messages: the conversation has {len(pictures)} pictures, and {MAX_PICTURES} are allowed: leave out some."
        )
    if (num_pixels := sum(picture.num_pixels for picture in pictures)) > MAX_ALL_PIXELS:
        raise RequestError(
            f"messages: the pictures of the conversation have {num_pixels:,} pixels, and {MAX_ALL_PIXELS:,} are "
            "allowed: leave out some, or send smaller ones."
        )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _BROKEN:
        # What says how to turn it is broken; the picture may be whole.
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def _start(url: object) -> str:
    return repr(url) if len(repr(url)) <= 60 else f"{repr(url)[:60]}..."
