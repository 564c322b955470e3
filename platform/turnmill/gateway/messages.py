"""Chat messages in one form, whatever API they came by, and keys by which conversations are compared.

Agents do not echo an answer as they got it: null becomes an empty text, arguments are serialised anew, ids and cache
marks change, and many drop the reasoning. A key leaves all of this out.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic_core import from_json

from turnmill.gateway.errors import RequestError
from turnmill.gateway.pictures import Picture, read_picture

JsonObject = Mapping[str, Any]

Message = JsonObject
"""`role`, `content` and, of assistants, `reasoning_content` and
`tool_calls`; the arguments of a call are an object. The content is a text, or with pictures a list of parts."""

ReasoningPlace = Literal["", "field", "content"]
"""Where an answer has its reasoning: nowhere, in a field of its own, or in its content if no parser takes it out."""

END_OF_REASONING = "</think>"

ROLES = frozenset({"system", "user", "assistant", "tool"})


def normalized(message: JsonObject) -> Message:
    """Return a message of OpenAI's chat API as chat templates take it. Raises RequestError for an unknown role."""
    role = message.get("role")
    if role == "developer":
        role = "system"
    if role not in ROLES:
        raise RequestError(f"messages: the role {role!r} is unknown. Take one of {', '.join(sorted(ROLES))}.")
    content = message.get("content")
    # An agent sends all its messages with each request: this is the gateway's innermost loop.
    result: dict[str, object] = {"role": role, "content": content if type(content) is str else _content(content)}
    if role == "assistant":
        if type(result["content"]) is list:
            raise RequestError("messages: a message of the assistant has a picture: send it in one of another role.")
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            result["reasoning_content"] = reasoning
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [tool_call(call.get("id"), **_function(call)) for call in calls]
    if name := message.get("name"):
        result["name"] = name
    if call_id := message.get("tool_call_id"):
        result["tool_call_id"] = call_id
    return result


def tool_call(call_id: object, name: str, arguments: object) -> dict[str, object]:
    """Return a call of a tool; arguments that are no JSON object stay a text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _parsed(arguments)}}


def message_key(message: Message) -> str:
    """Return a text that two messages share if they say the same."""
    content = message["content"]
    if type(content) is list:
        content = [{"picture": part["image"].digest} if "image" in part else part["text"] for part in content]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    if message["role"] == "assistant":
        # Agents and parsers of answers strip whitespace.
        content = content.strip()
    return json.dumps([message["role"], content, calls], sort_keys=True)


def reasoning_place(message: Message) -> ReasoningPlace:
    """Return where an answer has its reasoning."""
    if message.get("reasoning_content"):
        return "field"
    return "content" if END_OF_REASONING in message["content"] else ""


class HistoryKeys:
    """Makes a key for each beginning of a conversation; what it shares with the conversation before has its keys."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._keys = [""]

    def of(self, start: str, messages: Sequence[Message]) -> list[str]:
        """Return the keys after no message, which is `start`, after the first, and so on."""
        keys = [start]
        if start == self._keys[0]:
            shared = 0
            for message, before in zip(messages, self._messages, strict=False):
                # Messages that were read before are the same objects.
                if message is not before and message != before:
                    break
                shared += 1
            keys = self._keys[: 1 + shared]
        for message in messages[len(keys) - 1 :]:
            keys.append(digest(keys[-1], message_key(message)))
        self._messages, self._keys = messages, keys
        return keys


def start_key(tools: Sequence[JsonObject], template: JsonObject) -> str:
    """Return the key of an empty conversation with tools and options of the chat template."""
    return digest(json.dumps([list(tools), dict(template)], sort_keys=True))


def digest(*parts: str | bytes) -> str:
    """Return a digest of the parts, in order."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        result.update(len(data).to_bytes(8, "big") + data)
    return result.hexdigest()


def rest_of_answer(answer: Message, echoed: Message) -> Message | None:
    """Return what is left of an answer of which a client got only the first items; None if it is another answer."""
    calls, echoed_calls = answer.get("tool_calls") or [], echoed.get("tool_calls") or []
    text, echoed_text = answer["content"], echoed["content"]
    if echoed["role"] != "assistant":
        return None
    has_all_text = echoed_text.strip() == text.strip()
    if not has_all_text and (echoed_calls or not text.startswith(echoed_text)):
        return None
    if [call["function"] for call in calls[: len(echoed_calls)]] != [call["function"] for call in echoed_calls]:
        return None
    rest = {"role": "assistant", "content": "" if has_all_text else text[len(echoed_text) :]}
    return {**rest, "tool_calls": calls[len(echoed_calls) :]} if len(echoed_calls) < len(calls) else rest


def pictures_in(messages: Sequence[Message]) -> tuple[Picture, ...]:
    """Return the pictures of messages, in order."""
    contents = [message["content"] for message in messages if type(message["content"]) is list]
    return tuple(part["image"] for content in contents for part in content if "image" in part)


def _content(content: object) -> str | list[JsonObject]:
    """Return the text of a message, whose parts are lines; with pictures, return its parts. Raises RequestError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in _listed(content)]
    if any("image" in part for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(part: JsonObject | str) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if part.get("type") == "image_url":
            given = part.get("image_url")
            return {"type": "image", "image": read_picture(given.get("url") if isinstance(given, Mapping) else given)}
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise RequestError(
        f"messages: a part of the content is of type {kind!r}, and only text and pictures are supported."
    )


def _listed(content: object) -> list[JsonObject | str]:
    if not isinstance(content, list):
        raise RequestError(f"messages: the content must be a text or a list of parts, and is {content!r:.100}.")
    return content


def _function(call: JsonObject) -> JsonObject:
    function = call.get("function")
    if type(function) is not dict or type(function.get("name")) is not str:
        raise RequestError("messages: each of tool_calls needs a function with a name and arguments.")
    return {"name": function["name"], "arguments": function.get("arguments")}


def _parsed(arguments: object) -> object:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = from_json(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
