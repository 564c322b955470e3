"""Bodies of requests: what is read of their beginnings before makes no difference, and a repeat has the same digest."""

import json
import random
from typing import Any

import pytest

from support.gateway import bpe_tokenizer
from turnmill.gateway import bodies
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.apis.anthropic import MESSAGES
from turnmill.gateway.apis.base import Api
from turnmill.gateway.apis.chat import CHAT
from turnmill.gateway.bodies import BodyReader, BodyReaders, RequestBody
from turnmill.gateway.errors import RequestError
from turnmill.gateway.rendering import ChatRenderer

REQUEST = {
    "model": "policy",
    "messages": [{"role": "user", "content": "Look."}],
    "metadata": {"session": "1", "turn": {"number": 2, "of": 3}},
}
PATH = "/chat/completions"


def reader(path: str = PATH) -> BodyReader:
    return BodyReader(path, "messages")


def digest_of(fields: object, path: str = PATH) -> str:
    return reader(path).read(json.dumps(fields).encode()).digest


def content_of(body: RequestBody) -> tuple[object, object, str]:
    """Return what a body says."""
    return body.fields, None if body.items is None else [item.value for item in body.items], body.digest


# ---- digests ----


def test_the_order_of_fields_makes_no_other_request():
    metadata = {"turn": {"of": 3, "number": 2}, "session": "1"}
    other = {"metadata": metadata, "messages": [{"content": "Look.", "role": "user"}], "model": "policy"}

    assert digest_of(other) == digest_of(REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"messages": [{"role": "user", "content": "Look!"}]},
        {"messages": [*REQUEST["messages"], {"role": "user", "content": ""}]},
        {"messages": []},
        {"messages": "Look."},
        {"metadata": {"session": "2", "turn": {"number": 2, "of": 3}}},
        {"model": ["policy"]},
    ],
)
def test_a_request_that_says_something_else_is_another_one(change: dict[str, Any]):
    assert digest_of({**REQUEST, **change}) != digest_of(REQUEST)


def test_the_api_is_a_part_of_the_request():
    assert digest_of(REQUEST, "/messages") != digest_of(REQUEST)


def test_names_and_values_do_not_flow_into_each_other():
    assert digest_of({"a": "b", "c": "d"}) != digest_of({"a": "c", "b": "d"})


@pytest.mark.parametrize(
    "data",
    [b"no JSON", b"[1, 2]", b'"text"', b'{"a": "\\ud800"}', b"", b'{"a": 1} 2', b'{"a": 1', b"{1: 2}", b'{"a" 1}',
     b"\xff", b'{"messages": [{"a": "\\ud800"}]}', b'{"messages": [{}', b'{"messages": [{},]}',
     b'{"messages": [' + b"[" * 100_000],
)  # fmt: skip
def test_a_body_that_is_no_valid_object_is_known_by_its_bytes(data: bytes):
    body = reader("/messages").read(data)

    assert (body.fields, body.items) == (None, None)
    assert body.digest == reader("/messages").read(data).digest != reader("/messages").read(data + b" ").digest


# ---- what was read before ----


def request(*texts: str, **fields: object) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text} for text in texts], **fields}
    ).encode()


def test_messages_that_were_read_before_are_the_same_objects():
    read = reader()
    first = read.read(request("a", "b", tools=[1]))

    longer = read.read(request("a", "b", "c", tools=[1]))

    assert longer.items is not None
    assert first.items is not None
    assert list(longer.items[:2]) == list(first.items)
    assert longer.fields is first.fields
    assert content_of(longer) == content_of(reader().read(request("a", "b", "c", tools=[1])))


def test_each_message_is_converted_once():
    read, converted = reader(), []

    def convert(message: Any) -> list[Any]:
        converted.append(message["content"])
        return [message, message]

    read.read(request("a", "b")).messages(convert)
    messages = read.read(request("a", "b", "c")).messages(convert)

    assert converted == ["a", "b", "c"]
    assert [message["content"] for message in messages] == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize("api", [CHAT, MESSAGES])
def test_what_follows_valid_messages_is_checked(api: Api):
    def read(data: bytes) -> AnswerRequest:
        return api.read(known.read(data), ChatRenderer(bpe_tokenizer())).request

    known, options = reader(api.path), {"max_tokens": 1}
    first = read(request("a", **options))

    for wrong in (3, "b", [], {"role": "judge", "content": "b"}):
        data = json.loads(request("a", **options))
        with pytest.raises(RequestError, match=r"messages\.1: |role 'judge'"):
            read(json.dumps({**data, "messages": [*data["messages"], wrong]}).encode())

    assert read(request("a", **options)).messages == first.messages
    assert read(request("a", "b", **options)).messages[:1] == first.messages
    with pytest.raises(RequestError, match="messages: "):
        read(request(**options))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (request("a", "b"), request("a", "b", model="other")),
        (request("a", "b", tools=[1]), request("a", "b", "c", tools=[2])),
        (request("a", "b"), request("a", "B", "c")),
        (request("a", "b"), request("a")),
        (request("a"), request("a")),
        (request("a", "é"), request("a", "é", "ü", "\N{GRINNING FACE}", end="ö")),
        ('{"messages": [{"a": "é😀"}]}'.encode(), '{"messages": [{"a": "é😀"}, {"b": "€"}], "c": 1}'.encode()),
        (b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}, {"b": 2}], "messages": [{"c": 3}]}'),
        (b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}, {"b": 2}], "messages": "c"}'),
        (
            b'{"messages": [{"a": 1}], "messages": [{"b": 1}]}',
            b'{"messages": [{"a": 1}], "messages": [{"b": 1}, {"c": 1}]}',
        ),
        (b'{"messages": [{"a": 1}], "t": 1}', b'{"messages": [{"a": 1} , {"b": [ ] } ] , "t": 1}'),
        (b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}10]}'),
        (b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}, ]}'),
        (b'{"messages": [{"a": 1}]}', b'{"messages": [{"a": 1}]'),
        (b'{"messages": [1, 2]}', b'{"messages": [1, 23]}'),
        (b'{"messages": [1, 2]}', b'{"messages": [1, 2.5, 3]}'),
        (b'{"messages": [{"messages": [1]}]}', b'{"messages": [{"messages": [1, 2]}]}'),
    ],
)
def test_what_was_read_before_makes_no_difference(before: bytes, after: bytes):
    read = reader()
    read.read(before)

    body = read.read(after)

    assert content_of(body) == content_of(reader().read(after))
    if body.fields is not None:
        found = body.fields if body.items is None else {**body.fields, "messages": [item.value for item in body.items]}
        assert found == json.loads(after)
    # Nor does what has been read now make one.
    assert content_of(read.read(before)) == content_of(reader().read(before))


def test_bodies_changed_at_random_are_read_as_if_they_were_the_first():
    chance, read = random.Random(0), reader()
    data = request("a", "ü", "c", "[{", tools=[{"name": "t", "messages": [1]}], stop="]")
    for _ in range(3000):
        place = chance.randrange(len(data))
        changed = data[:place] + bytes([chance.choice(b'{}[],:"a1 \\\xc3')]) + data[place + chance.randrange(2) :]

        assert content_of(read.read(changed)) == content_of(reader().read(changed)), changed
        if chance.random() < 0.05:
            data = request(
                *chance.choices(["a", "ü", "]}", '"', "\\"], k=chance.randrange(1, 9)), n=chance.randrange(3)
            )


def test_conversations_of_several_agents_with_one_key_do_not_drive_out_each_other():
    read = reader()
    read.read(request("a", "b"))
    read.read(request("sub", "b"))

    first, second = read.read(request("a", "b", "c")), read.read(request("sub", "b", "c"))

    assert all(body.items is not None and len(body.items) == 3 for body in (first, second))
    assert [len(body.items or ()) for body in read._known] == [3, 3]


def test_bodies_of_agents_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "MAX_REMEMBERED_BYTES", 1000)
    readers = BodyReaders()
    for number in range(100):
        readers.read(f"key{number}", PATH, "messages", request("a" * 100))
        assert readers._num_bytes <= 1000

    (large,) = [readers.read("large", PATH, "messages", request("a" * 5000))]

    assert large.items is not None
    assert (readers._num_bytes, len(readers._readers)) == (0, 0)
