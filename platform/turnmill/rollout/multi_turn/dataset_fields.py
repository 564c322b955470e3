"""Keyword arguments of verl's agent loops for a task, as verl's own data set makes them."""

from collections.abc import Mapping

from PIL import Image
from verl.utils.tokenizer import build_multimodal_processor_inputs

from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.rollout.task_images import MEDIA_FIELDS, build_messages, images_in
from turnmill.rollout.verl_types import Message, Processor
from turnmill.tasks import Task

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


def _multi_modal_inputs(messages: list[Message], images: list[Image.Image], processor: Processor) -> dict[str, object]:
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = dict(build_multimodal_processor_inputs(processor, text=[text], images=images))
    return {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}


def _without_nulls(value: object) -> object:
    """Return the value without the nulls that a table fills in where its rows have different keys."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(part) for name, part in value.items() if part is not None}
