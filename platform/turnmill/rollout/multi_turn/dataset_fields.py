"""What a verl agent loop is given of a task: the fields that verl's own data set gives."""

import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import build_multimodal_processor_inputs

from turnmill.core.errors import AgentLoopError
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.tasks import Task

MEDIA = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}
NOT_GIVEN = {*MEDIA.values(), "prompt", "agent_name", "index", "uid", "session_id", "global_steps"}


def loop_input(task: Task, processor: Any, agent: MultiTurnAgent) -> dict[str, Any]:
    """The row of the task as keyword arguments."""
    messages = messages_of(task, processor)
    extra_info = dict(task.extra_info)
    given = {
        **{name: value for name, value in task.row.items() if name not in NOT_GIVEN},
        "raw_prompt": messages,
        "extra_info": extra_info,
        "tools_kwargs": _without_gaps(extra_info.get("tools_kwargs") or {}),
    }
    if agent.return_multi_modal_inputs and (images := images_in(messages)):
        given["multi_modal_inputs"] = _processed(messages, images, processor)
    return given


def messages_of(task: Task, processor: Any) -> list[dict[str, Any]]:
    """The task's messages, with its images where verl's format has `<image>`."""
    row = {name: copy.deepcopy(task.row.get(name)) for name in MEDIA.values()}
    row["prompt"] = copy.deepcopy([dict(message) for message in task.messages])
    if processor is None and any(row[name] for name in MEDIA.values()):
        raise AgentLoopError(f"task {task.number} has images, and the model reads text alone: take one for images")
    built: list[dict[str, Any]] = RLHFDataset._build_messages(
        SimpleNamespace(processor=processor, **MEDIA), row, key="prompt"
    )
    return built


def images_in(messages: Iterable[Mapping[str, Any]]) -> list[Image.Image]:
    """The images of a chat, in order. Raises AgentLoopError for videos and sounds."""
    return [_open(part) for part in _parts(messages) if _is_image(part)]


def _parts(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        if not isinstance(message.get("content"), str):
            yield from message.get("content") or ()


def _is_image(part: Mapping[str, Any]) -> bool:
    if part["type"] in ("video", "audio"):
        raise AgentLoopError(f"a prompt holds a {part['type']}: of media, agent loops take images alone")
    return bool(part["type"] == "image")


def _open(part: Mapping[str, Any]) -> Image.Image:
    image = part.get("image") or part.get("bytes") or part.get("path")
    if not isinstance(image, Image.Image):
        image = Image.open(io.BytesIO(image) if isinstance(image, bytes) else str(image).removeprefix("file://"))
    return image.convert("RGB")


def _processed(messages: list[dict[str, Any]], images: list[Image.Image], processor: Any) -> dict[str, Any]:
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    made = dict(build_multimodal_processor_inputs(processor, text=[text], images=images))
    return {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}


def _without_gaps(value: Any) -> Any:
    """Without what a table of rows of unequal keys fills in."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_gaps(part) for name, part in value.items() if part is not None}
