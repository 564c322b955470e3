"""Single frames of a run's animated GIFs of episodes."""

import io
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageSequence

FRAME_MILLISECONDS = 400
"""Time per turn in GIFs of `write_gif`, which merges equal frames into a longer one."""


@lru_cache(maxsize=16)
def _read_frames(path: Path, modified_ns: int) -> tuple[list[int], list[bytes]]:
    """Return the end time of each frame in milliseconds, and the frames as PNG."""
    ends, images, end = [], [], 0
    with Image.open(path) as animation:
        for frame in ImageSequence.Iterator(animation):
            end += int(frame.info.get("duration", FRAME_MILLISECONDS))
            ends.append(end)
            buffer = io.BytesIO()
            frame.convert("RGB").save(buffer, format="PNG")
            images.append(buffer.getvalue())
    return ends, images


def frame_png(path: Path, number: int) -> bytes | None:
    """Return the frame after a number of turns as PNG; None if the file has none."""
    try:
        ends, images = _read_frames(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
    milliseconds = number * FRAME_MILLISECONDS
    return next((image for end, image in zip(ends, images, strict=True) if milliseconds < end), None)
