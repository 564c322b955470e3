import msgpack
from hypothesis import given
from hypothesis import strategies as st

from turnmill.core.trajectory import Turn
from turnmill.trajectories.packing import pack, unpack

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple)
numbers = st.floats(allow_nan=False)


@st.composite
def turns(draw):
    response_ids = draw(tokens)
    size = len(response_ids)
    return Turn(
        prompt_ids=draw(tokens),
        response_ids=response_ids,
        log_probs=draw(st.sampled_from([(), tuple(draw(st.lists(numbers, min_size=size, max_size=size)))])),
        # Any character, also halves of surrogate pairs.
        response_text=draw(st.text(st.characters())),
        observation=draw(st.text()),
        valid=draw(st.booleans()),
        reward=draw(numbers),
        policy_version=draw(st.integers(0, 10**6)),
        images=tuple(draw(st.lists(st.binary(max_size=8), max_size=3))),
        metrics=draw(st.dictionaries(st.text(max_size=3), numbers, max_size=3)),
    )


@given(turns())
def test_unpack_inverts_pack(turn):
    assert unpack(Turn, pack(turn)) == turn


@given(turns())
def test_equal_turns_make_equal_bytes(turn):
    assert pack(unpack(Turn, pack(turn))) == pack(turn)


def test_log_probs_keep_every_bit():
    turn = Turn(prompt_ids=(), response_ids=(1,), log_probs=(-0.1234567890123456789,))

    assert unpack(Turn, pack(turn)).log_probs == turn.log_probs


def test_unknown_fields_of_another_version_are_ignored():
    packed = msgpack.unpackb(pack(Turn(prompt_ids=(), response_ids=())), strict_map_key=False)

    assert unpack(Turn, msgpack.packb(packed | {"of tomorrow": 1})) == Turn(prompt_ids=(), response_ids=())
