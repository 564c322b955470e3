"""What makes two requests one: a repeat has the digest of the first, and nothing else has."""

import json

import pytest

from turnmill.gateway.messages import request_digest

REQUEST = {
    "model": "policy",
    "messages": [{"role": "user", "content": "Look."}],
    "metadata": {"session": "1", "turn": {"number": 2, "of": 3}},
}


def digest_of(fields: object, path: str = "/chat/completions") -> str:
    return request_digest(path, json.dumps(fields).encode())


def test_the_order_of_fields_makes_no_other_request():
    metadata = {"turn": {"of": 3, "number": 2}, "session": "1"}
    other = {"metadata": metadata, "messages": REQUEST["messages"], "model": "policy"}

    assert digest_of(other) == digest_of(REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"messages": [{"role": "user", "content": "Look!"}]},
        {"messages": [*REQUEST["messages"], {"role": "user", "content": ""}]},
        {"metadata": {"session": "2", "turn": {"number": 2, "of": 3}}},
        {"model": ["policy"]},
    ],
)
def test_a_request_that_says_something_else_is_another_one(change):
    assert digest_of({**REQUEST, **change}) != digest_of(REQUEST)


def test_the_api_is_a_part_of_the_request():
    assert digest_of(REQUEST, "/messages") != digest_of(REQUEST)


def test_names_and_values_do_not_flow_into_each_other():
    assert digest_of({"a": "b", "c": "d"}) != digest_of({"a": "c", "b": "d"})


@pytest.mark.parametrize("body", [b"no JSON", b"[1, 2]", b'"text"', b'{"a": "\\ud800"}', b""])
def test_a_body_that_is_no_valid_object_is_known_by_its_bytes(body):
    assert request_digest("/messages", body) == request_digest("/messages", body)
    assert request_digest("/messages", body) != request_digest("/messages", body + b" ")
