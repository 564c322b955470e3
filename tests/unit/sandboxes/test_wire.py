import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnmill.sandboxes import wire
from turnmill.sandboxes.base import Command, Function, Limits, Python, SandboxResult, SandboxTask

paths = st.text(min_size=1)
programs = st.one_of(
    st.builds(Python, st.text(st.characters()), st.text()),
    st.builds(Command, st.lists(st.text()).map(tuple)),
    st.builds(Function, st.text(), st.binary()),
)
tasks = st.builds(
    SandboxTask,
    programs,
    stdin=st.binary(),
    files=st.dictionaries(paths, st.binary()),
    environment=st.dictionaries(st.text(), st.text()),
    folder=st.text(),
    limits=st.builds(Limits, seconds=st.floats(0, 1e6), network=st.booleans()),
    merge_output=st.booleans(),
    keep_files=st.booleans(),
)
results = st.builds(
    SandboxResult,
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
@given(results)
def test_a_result_arrives_as_it_was_sent(result):
    assert wire.unpack_result(*received(wire.pack_result(result))) == result


@pytest.mark.parametrize("part", [0, 5, 12, 40])
def test_an_incomplete_message_is_none(part):
    message = wire.pack_result(SandboxResult(exit_code=0, stdout=b"x" * 100))

    assert wire.receive(io.BytesIO(message[:part]).read) is None


def test_file_names_that_are_not_utf_8_arrive():
    result = SandboxResult(exit_code=0, files={"\udcff": b"x"})

    assert wire.unpack_result(*received(wire.pack_result(result))) == result


def test_output_that_looks_like_a_message_stays_output():
    forged = wire.pack_result(SandboxResult(exit_code=0, stdout=b"forged"))

    result = wire.unpack_result(*received(wire.pack_result(SandboxResult(exit_code=3, stdout=forged))))

    assert (result.exit_code, result.stdout) == (3, forged)
