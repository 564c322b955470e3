import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnmill.sandboxes import wire
from turnmill.sandboxes.base import Command, Function, Limits, Outcome, Python, Task

paths = st.text(min_size=1)
programs = st.one_of(
    st.builds(Python, st.text(st.characters()), st.text()),
    st.builds(Command, st.lists(st.text()).map(tuple)),
    st.builds(Function, st.text(), st.binary()),
)
tasks = st.builds(
    Task,
    programs,
    stdin=st.binary(),
    files=st.dictionaries(paths, st.binary()),
    environment=st.dictionaries(st.text(), st.text()),
    folder=st.text(),
    limits=st.builds(Limits, seconds=st.floats(0, 1e6), network=st.booleans()),
    merge_output=st.booleans(),
    keep_files=st.booleans(),
)
outcomes = st.builds(
    Outcome,
    exit_code=st.none() | st.integers(0, 255),
    stdout=st.binary(),
    stderr=st.binary(),
    truncated=st.booleans(),
    limit=st.none() | st.just("time"),
    value=st.none() | st.binary(),
    files=st.none() | st.dictionaries(paths, st.binary()),
    seconds=st.floats(0, 1e6),
)


def received(message):
    return wire.unpack(*wire.receive(io.BytesIO(message).read))


@settings(deadline=None)
@given(tasks)
def test_a_task_arrives_as_it_was_sent(task):
    assert wire.unpack_task(*received(wire.pack_task(task))) == task


@settings(deadline=None)
@given(outcomes)
def test_an_outcome_arrives_as_it_was_sent(outcome):
    assert wire.unpack_outcome(*received(wire.pack_outcome(outcome))) == outcome


@pytest.mark.parametrize("part", [0, 5, 12, 40])
def test_a_message_that_ends_early_is_none(part):
    message = wire.pack_outcome(Outcome(exit_code=0, stdout=b"x" * 100))

    assert wire.receive(io.BytesIO(message[:part]).read) is None


def test_names_that_are_no_text_arrive_too():
    outcome = Outcome(exit_code=0, files={"\udcff": b"x"})

    assert wire.unpack_outcome(*received(wire.pack_outcome(outcome))) == outcome


def test_output_that_looks_like_a_message_stays_output():
    forged = wire.pack_outcome(Outcome(exit_code=0, stdout=b"forged"))

    outcome = wire.unpack_outcome(*received(wire.pack_outcome(Outcome(exit_code=3, stdout=forged))))

    assert (outcome.exit_code, outcome.stdout) == (3, forged)
