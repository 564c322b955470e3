"""Keyword arguments of verl's agent loops for a task, as verl's own data set makes them."""

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace

from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import build_multimodal_processor_inputs

from turnmill.core.errors import AgentLoopError
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.rollout.verl_types import Message, Processor
from turnmill.tasks import Task

MEDIA_FIELDS = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}
RESERVED_FIELDS = {*MEDIA_FIELDS.values(), "prompt", "agent_name", "index", "uid", "session_id", "global_steps"}
"""Columns of a task's row that are passed in another form, or that verl sets itself."""


def dataset_fields(task: Task, processor: Processor | None, agent: MultiTurnAgent) -> dict[str, object]:
    """Return the row of the task as keyword arguments of an agent loop."""
    messages = build_messages(task, processor)
    extra_info = dict(task.extra_info)
    fields = {
        **{name: value for name, value in task.row.items() if name not in RESERVED_FIELDS},
        "raw_prompt": messages,
        "extra_info": extra_info,
        "tools_kwargs": _without_nulls(extra_info.get("tools_kwargs") or {}),
    }
    if agent.return_multi_modal_inputs and (images := images_in(messages)):
        assert processor is not None
        fields["multi_modal_inputs"] = _multi_modal_inputs(messages, images, processor)
    return fields


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


def _multi_modal_inputs(messages: list[Message], images: list[Image.Image], processor: Processor) -> dict[str, object]:
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = dict(build_multimodal_processor_inputs(processor, text=[text], images=images))
    return {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}


def _without_nulls(value: object) -> object:
    """Return the value without the nulls that a table fills in where its rows have different keys."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(part) for name, part in value.items() if part is not None}
