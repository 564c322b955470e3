"""Animations and images of episodes."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_gif(frames: Sequence[np.ndarray | Image.Image], path: Path, *, frame_seconds: float = 0.4) -> None:
    """Write frames of shape (height, width, 3), uint8, as an animated GIF, atomically; the last frame stays longest."""
    if not frames:
        raise ValueError(f"An animation needs at least one frame: nothing to write to {path}.")
    images = [frame if isinstance(frame, Image.Image) else Image.fromarray(frame) for frame in frames]
    durations = [round(frame_seconds * 1000)] * len(images)
    durations[-1] *= 3
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        images[0].save(partial, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def to_png(frame: np.ndarray) -> bytes:
    """Encode a frame of shape (height, width, 3), uint8, as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG")
    return buffer.getvalue()


def from_png(picture: bytes) -> np.ndarray:
    """Decode a PNG into a frame of shape (height, width, 3), uint8."""
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
