"""Prompts: the messages a policy reads before each response."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.rollout.verlog.memory import Memory

_TITLES = ("Observation:\n", "Current Observation:\n", "Previous plan:\n")

Message = dict[str, str]
"""`role` and `content`, as chat templates take them."""

PromptFunction = Callable[[Memory, str], list[Message]]
"""A user's function: it takes the memory and the environment's instructions, and returns the messages of a turn."""

_THINK = "What will you do next? Answer in two lines:\nTHINK: your reasoning, step by step.\n"
_SUFFIXES: dict[str, str] = {
    "cot": f"{_THINK}ACTION: one of the allowed actions, in its exact words, and nothing after it.",
    "cot_actions": f"{_THINK}ACTION: one of these actions, and nothing after it: {{actions}}.",
    "document": f"{_THINK}ACTION: one of the allowed actions, in its exact words, and nothing after it.",
    "naive": "What will you do next? Answer with one of the allowed actions, in its exact words, and nothing else.",
}
"""Text after the observation, by the name of the prompt."""


def requires_marker(template: str) -> bool:
    """Return True if the action must follow `ACTION:`; elsewhere a response that is an action alone is valid, too."""
    return template == "compact"


def build_messages(
    memory: Memory, *, template: str, instruction_prompt: str, compact_prompt: str, actions: Sequence[str] = ()
) -> list[Message]:
    """Return the messages of a turn, ending with the observation to respond to."""
    if template == "compact":
        return _compact_messages(memory, compact_prompt)
    if ":" in template:
        return _checked(template, load_function(template)(memory, instruction_prompt))
    # Verlog's document shows texts without titles, its code with them.
    observed, current, planned = ("", "", "") if template == "document" else _TITLES
    messages = [_message("system", instruction_prompt)]
    for turn, in_full in memory.turns_with_detail():
        messages.append(_message("user", f"{observed}{turn.observation}"))
        messages.append(_message("assistant", f"{planned}{turn.response}" if in_full else turn.action))
    asked = question(template).replace("{actions}", ", ".join(actions))
    messages.append(_message("user", f"{current}{memory.observation}\n\n{asked}"))
    return messages


@cache
def question(template: str) -> str:
    """Return the text after the current observation: that of a prompt's name, or a file's. Raises SettingsError."""
    if template in _SUFFIXES:
        return _SUFFIXES[template]
    try:
        return Path(template).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"agent.prompt: {template!r} cannot be read ({error}). Give a file of UTF-8 text."
        ) from error


@cache
def load_function(path: str) -> PromptFunction:
    """Import a user's function. Raises SettingsError if there is none."""
    try:
        found = import_object(path)
    except Exception as error:
        # A module of the user's own may raise anything on import.
        raise SettingsError(
            f"agent.prompt: {path!r} cannot be imported ({type(error).__name__}: {error}). Install its package, or put "
            "its folder on PYTHONPATH."
        ) from error
    if not callable(found):
        raise SettingsError(f"agent.prompt: {path!r} is no function, but {found!r}. Name one that builds messages.")
    function: PromptFunction = found
    return function


def _checked(path: str, messages: object) -> list[Message]:
    well_formed = isinstance(messages, list) and all(
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and all(isinstance(v, str) for v in message.values())
        for message in messages
    )
    if not well_formed or not messages:
        raise SettingsError(
            f"agent.prompt: {path!r} returned {messages!r}. Return a list of {{'role': ..., 'content': ...}}."
        )
    return cast("list[Message]", messages)


def _compact_messages(memory: Memory, compact_prompt: str) -> list[Message]:
    messages = [_message("system", compact_prompt)]
    for turn, in_full in memory.turns_with_detail():
        messages.append(_message("user", turn.observation))
        messages.append(_message("assistant", turn.response if in_full else turn.action))
    messages.append(_message("user", memory.observation))
    return messages


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
