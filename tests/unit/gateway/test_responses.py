"""Items of OpenAI's Responses as messages: several may be one answer, whatever was read before."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from support.gateway import bpe_tokenizer
from turnmill.gateway.apis.responses import RESPONSES, messages_of
from turnmill.gateway.bodies import BodyReader, RequestBody
from turnmill.gateway.errors import RequestError
from turnmill.gateway.messages import normalized
from turnmill.gateway.rendering import ChatRenderer

USER = {"role": "user", "content": "Look."}
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
CALL = {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"at": "it"}'}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "a page"}
SEARCH = {"type": "web_search_call", "id": "2"}

ANSWER = {"role": "assistant", "content": "I do."}
CALLED = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}


def reader() -> BodyReader:
    return BodyReader(RESPONSES.path, RESPONSES.conversation)


def read(known: BodyReader, items: Sequence[object]) -> RequestBody:
    return known.read(json.dumps({"model": "policy", "input": items}).encode())


def messages(items: Sequence[object], known: BodyReader | None = None) -> list[dict[str, Any]]:
    found = read(known or reader(), items).items
    assert found is not None
    return [dict(message) for message in messages_of(found)]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([USER, TEXT], [normalized(USER), normalized(ANSWER)]),
        ([THOUGHT, TEXT, CALL, CALL], [{**ANSWER, "reasoning_content": "Hm.", "tool_calls": [CALLED, CALLED]}]),
        ([CALL, RESULT], [{"role": "assistant", "content": "", "tool_calls": [CALLED]}, normalized(
            {"role": "tool", "tool_call_id": "1", "content": "a page"})]),
        ([TEXT, TEXT], [ANSWER, ANSWER]),
        ([TEXT, SEARCH, CALL], [{**ANSWER, "tool_calls": [CALLED]}]),
        ([CALL, TEXT], [{"role": "assistant", "content": "", "tool_calls": [CALLED]}, ANSWER]),
        ([], []),
    ],
)  # fmt: skip
def test_items_that_follow_each_other_are_one_answer(items: list[object], expected: list[object]):
    assert messages(items) == expected


def test_what_was_read_before_makes_no_difference():
    chance, kinds = random.Random(0), (USER, TEXT, THOUGHT, CALL, RESULT, SEARCH)
    for _ in range(300):
        known, items = reader(), []
        for _ in range(5):
            items = items[: chance.randrange(len(items) + 1)] if chance.random() < 0.3 else items
            items = [*items, *(chance.choice(kinds) for _ in range(chance.randrange(4)))]
            assert messages(items, known) == messages(items), items


def test_finished_messages_are_the_same_objects():
    known, items = reader(), [USER, TEXT, CALL, RESULT]
    first = messages_of(read(known, items).items or ())

    later = messages_of(read(known, [*items, TEXT, USER]).items or ())

    assert all(one is other for one, other in zip(first, later, strict=False))
    assert [message["role"] for message in later] == ["user", "assistant", "tool", "assistant", "user"]


def test_new_items_are_checked():
    known, renderer = reader(), ChatRenderer(bpe_tokenizer())
    first = RESPONSES.read(read(known, [USER]), renderer).request

    for wrong in (3, "b", []):
        with pytest.raises(RequestError, match=r"input"):
            RESPONSES.read(read(known, [USER, wrong]), renderer)

    assert RESPONSES.read(read(known, [USER]), renderer).request.messages == first.messages
