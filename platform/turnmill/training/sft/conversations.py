"""Conversations in a file: messages, their tools, and which answers are learned from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.tasks.dataset import read_table

Message = dict[str, object]
"""A message as chat templates take it."""

_MARKS = ("loss", "weight")
"""Fields of an answer that say whether it is learned from: `loss: false`, or OpenAI's `weight: 0`."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, with the numbers of the answers that are learned from."""

    messages: tuple[Message, ...]
    learned: tuple[int, ...]
    tools: tuple[Message, ...] = ()
    location: str = ""
    """Where it was read, for messages."""


def read_conversations(path: Path, place: str) -> list[Conversation]:
    """Read a `.jsonl` or `.parquet` file that the job names at `place`; raises SettingsError for the first bad row."""
    rows = read_table(path, place, "conversation")
    return [parse_conversation(row, f"{place}: {str(path)!r}, row {n}") for n, row in enumerate(rows, start=1)]


def parse_conversation(row: Mapping[str, object], location: str) -> Conversation:
    """Return the conversation of a row. Raises SettingsError for one without messages or without an answer."""
    messages = _objects(row.get("messages"))
    if not messages:
        raise SettingsError(f"{location} has no messages. Give `messages`, a list of objects with role and content.")
    if any(not isinstance(message.get("role"), str) for message in messages):
        raise SettingsError(f"{location} has a message without a role. Write system, user, assistant or tool.")
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    learned = tuple(number for number in answers if all(messages[number].get(mark, True) for mark in _MARKS))
    if not learned:
        reason = "has no answer that is learned from" if answers else "has no message of the assistant"
        raise SettingsError(f"{location} {reason}. Add one, or take the row out.")
    tools = _objects(row.get("tools"))
    if tools is None:
        raise SettingsError(f"{location} has tools that are no list of objects. Give their JSON schemas, or none.")
    return Conversation(tuple(map(_as_template_takes_it, messages)), learned, tuple(tools), location)


def _objects(value: object) -> list[Message] | None:
    """Return a list of objects, which may be text in JSON; nothing is the empty list, and None anything else.

    Parquet gives all rows the same fields, so those with None are left out.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    found = _without_none(value or [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return None
    return found


def _without_none(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_without_none(inner) for inner in value]
    return value


def _as_template_takes_it(message: Message) -> Message:
    """Return a message with a content, without marks, and with the arguments of its calls as objects."""
    kept = {name: value for name, value in message.items() if name not in _MARKS}
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [_with_arguments(call) if isinstance(call, dict) else call for call in calls]
    return {"content": ""} | kept


def _with_arguments(call: Message) -> Message:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return call | {"function": function | {"arguments": arguments}}
