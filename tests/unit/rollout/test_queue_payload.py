"""Payloads of the queue: the same values after it, whatever they are."""

import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from turnmill.core.trajectory import EpisodeSummary, SegmentMetadata, TurnMetadata
from turnmill.rollout import queue_payload
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.rollout.queue_payload import decode, decode_all, encode

SUMMARY = EpisodeSummary(
    episode_id="t",
    reward=0.5,
    stop_reason="max_turns",
    success=True,
    num_turns=2,
    policy_versions=(3, 4),
    sampled_tokens=b"\0\x80",
    seconds={"tools": 0.25},
    metrics={"calls": 1.0},
    prediction="42\0",
    row_states=("a", "b"),
)
OF_GRL = GrlEpisodeSummary(
    episode_id="g",
    reward=1.0,
    stop_reason="completed",
    success=False,
    num_turns=1,
    group=1,
    tag="sokoban",
    turn_rewards=(1.0, -0.1),
    turn_penalties=(0.0, 0.0),
    response_ends=((0, 3), (1, 5)),
    chat=(("user", "go"),),
)


@dataclass(frozen=True)
class Holder:
    """What tensordict wraps values in."""

    data: bytes


@pytest.mark.parametrize(
    "payload", [SUMMARY, OF_GRL, TurnMetadata(reward=-1.0, done=True), SegmentMetadata(failure_causes=("store",))]
)
def test_payloads_are_the_same_afterwards(payload):
    encoded = encode(payload)

    assert decode(encoded, type(payload)) == decode(Holder(encoded), type(payload)) == payload
    assert not encoded.startswith(pickle.PROTO)


@pytest.mark.parametrize(
    "changed",
    [
        {"reward": True},
        {"metrics": {"found": False}},
        {"reward": np.float32(0.1)},
        {"metrics": {"count": np.int64(2)}},
        {"prediction": "\ud800"},
        {"row_states": ["a", "b"]},
    ],
    ids=str,
)
def test_values_that_msgpack_would_change_are_pickled(changed):
    payload = replace(SUMMARY, **changed)

    found = decode(encode(payload), EpisodeSummary)

    assert found == payload
    ((name, value),) = changed.items()
    assert type(getattr(found, name)) is type(value)


def test_numbers_that_are_none_and_those_of_numpy_that_are_floats_stay():
    found = decode(encode(replace(SUMMARY, reward=math.nan, metrics={"a": np.float64(2)})), EpisodeSummary)

    assert math.isnan(found.reward)
    assert found.metrics == {"a": 2.0}


def test_many_payloads_are_decoded_as_each_is_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue_payload, "_DECODED_AT_ONCE", 3)
    summaries = [replace(SUMMARY, episode_id=str(number), metrics={"number": number / 3}) for number in range(8)]
    values = [encode(each) for each in summaries]

    assert decode_all(values, EpisodeSummary) == tuple(summaries)
    assert decode_all([], EpisodeSummary) == ()

    mixed = [Holder(values[0]), encode(OF_GRL), values[1], encode(replace(SUMMARY, reward=True)), *values[2:]]
    assert decode_all(mixed, EpisodeSummary) == tuple(decode(value, EpisodeSummary) for value in mixed)
    with pytest.raises(TypeError, match="where a GrlEpisodeSummary is expected"):
        decode_all(values, GrlEpisodeSummary)


def test_a_kind_is_read_as_what_it_is_made_of_and_as_nothing_else():
    assert decode(encode(OF_GRL), EpisodeSummary).episode_id == "g"
    for encoded, kind in (
        (encode(SUMMARY), GrlEpisodeSummary),
        (encode(SegmentMetadata()), TurnMetadata),
        (encode(replace(SUMMARY, reward=True)), TurnMetadata),
    ):
        with pytest.raises(TypeError, match=f"where a {kind.__name__} is expected"):
            decode(encoded, kind)
