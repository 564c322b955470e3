"""Single pictures of the moving ones that a run keeps of episodes."""

import io
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageSequence

FRAME_MILLISECONDS = 400
"""How long `write_gif` shows what each turn left; two alike become one that is shown as long as both."""


@lru_cache(maxsize=16)
def _frames(path: Path, changed: int) -> tuple[list[int], list[bytes]]:
    """When each picture of the file ends, and the pictures."""
    ends, pictures, end = [], [], 0
    with Image.open(path) as moving:
        for frame in ImageSequence.Iterator(moving):
            end += int(frame.info.get("duration", FRAME_MILLISECONDS))
            ends.append(end)
            buffer = io.BytesIO()
            frame.convert("RGB").save(buffer, format="PNG")
            pictures.append(buffer.getvalue())
    return ends, pictures


def frame_png(path: Path, number: int) -> bytes | None:
    """What stood there after so many turns; None where the file has no such moment."""
    try:
        ends, pictures = _frames(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
    moment = number * FRAME_MILLISECONDS
    return next((picture for end, picture in zip(ends, pictures, strict=True) if moment < end), None)
