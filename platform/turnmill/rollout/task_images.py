"""Images in the prompt of a task, placed as verl's own data set places them."""

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace

from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset

from turnmill.core.errors import AgentLoopError
from turnmill.rollout.verl_types import Message, Processor
from turnmill.tasks import Task

MEDIA_FIELDS = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}


def build_messages(task: Task, processor: Processor | None) -> list[Message]:
    """Return the task's messages, with its images in place of each `<image>`.

    Raises AgentLoopError for images where the model takes text alone.
    """
    row = {name: copy.deepcopy(task.row.get(name)) for name in MEDIA_FIELDS.values()}
    row["prompt"] = copy.deepcopy([dict(message) for message in task.messages])
    if processor is None and any(row[name] for name in MEDIA_FIELDS.values()):
        raise AgentLoopError(f"task {task.number} has images, but the model accepts only text: use a multi-modal model")
    messages: list[Message] = RLHFDataset._build_messages(
        SimpleNamespace(processor=processor, **MEDIA_FIELDS), row, key="prompt"
    )
    return messages


def images_in(messages: Iterable[Message]) -> list[Image.Image]:
    """Return the images of a chat, in order. Raises AgentLoopError for videos and sounds."""
    return [_open(part) for part in _parts(messages) if _is_image(part)]


def _parts(messages: Iterable[Message]) -> Iterator[Mapping[str, object]]:
    for message in messages:
        if not isinstance(message.get("content"), str):
            yield from message.get("content") or ()


def _is_image(part: Mapping[str, object]) -> bool:
    if part["type"] in ("video", "audio"):
        raise AgentLoopError(f"a prompt contains a {part['type']}, but agent loops support no media but images")
    return part["type"] == "image"


def _open(part: Mapping[str, object]) -> Image.Image:
    image = part.get("image") or part.get("bytes") or part.get("path")
    if not isinstance(image, Image.Image):
        image = Image.open(io.BytesIO(image) if isinstance(image, bytes) else str(image).removeprefix("file://"))
    return image.convert("RGB")
