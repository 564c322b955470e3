"""Prompts: the messages a policy reads before each response."""

from typing import Literal

from turnmill.rollout.verlog.memory import Memory

PromptTemplate = Literal["cot", "naive", "compact"]
"""`cot` asks for a thought and an action, `naive` for an action alone, `compact` gives no instructions."""

Message = dict[str, str]
"""`role` and `content`, as chat templates take them."""

_SUFFIXES: dict[PromptTemplate, str] = {
    "cot": (
        "What will you do next? Answer in two lines:\n"
        "THINK: your reasoning, step by step.\n"
        "ACTION: one of the allowed actions, in its exact words, and nothing after it."
    ),
    "naive": "What will you do next? Answer with one of the allowed actions, in its exact words, and nothing else.",
}


def requires_marker(template: PromptTemplate) -> bool:
    """Return True if the action must follow `ACTION:`; elsewhere a response that is an action alone is valid, too."""
    return template == "compact"


def build_messages(
    memory: Memory, *, template: PromptTemplate, instruction_prompt: str, compact_prompt: str
) -> list[Message]:
    """Return the messages of a turn, ending with the observation to respond to."""
    if template == "compact":
        return _compact_messages(memory, compact_prompt)
    messages = [_message("system", instruction_prompt)]
    for turn, in_full in memory.turns_with_detail():
        messages.append(_message("user", f"Observation:\n{turn.observation}"))
        messages.append(_message("assistant", f"Previous plan:\n{turn.response}" if in_full else turn.action))
    messages.append(_message("user", f"Current Observation:\n{memory.observation}\n\n{_SUFFIXES[template]}"))
    return messages


def _compact_messages(memory: Memory, compact_prompt: str) -> list[Message]:
    messages = [_message("system", compact_prompt)]
    for turn, in_full in memory.turns_with_detail():
        messages.append(_message("user", turn.observation))
        messages.append(_message("assistant", turn.response if in_full else turn.action))
    messages.append(_message("user", memory.observation))
    return messages


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
