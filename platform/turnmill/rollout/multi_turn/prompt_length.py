"""Number of tokens of a task's prompt, as verl's data set counts them to filter overlong prompts."""

from collections.abc import Mapping, Sequence

from verl.utils.tokenizer import build_multimodal_processor_inputs

from turnmill.rollout.multi_turn.verl_classes import BaseTool, FunctionTool
from turnmill.rollout.task_images import build_messages, images_in
from turnmill.rollout.verl_types import ChatTemplate, Processor, Tokenizer
from turnmill.tasks import Task


def prompt_length(
    task: Task,
    tools: Sequence[BaseTool | FunctionTool],
    tokenizer: Tokenizer,
    processor: Processor | None,
    template_settings: Mapping[str, object],
) -> int:
    """Return the length of a task's chat with the schemas of its tools, and with its pictures."""
    messages = build_messages(task, processor)
    chosen = task.extra_info.get("tool_selection")
    schemas = [
        tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
        for tool in tools
        if not chosen or tool.name in chosen
    ]
    template: ChatTemplate = tokenizer if processor is None else processor
    settings = {**template_settings, "tools": schemas or None}
    text = template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
    if processor is not None and (images := images_in(messages)):
        return len(build_multimodal_processor_inputs(processor, text=[text], images=images)["input_ids"][0])
    return len(tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"])
