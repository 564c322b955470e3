import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnmill.sandboxes import wire
from turnmill.sandboxes.base import Command, Function, Limits, Python, SandboxTask

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
reports = st.builds(
    wire.Report,
    exit_code=st.none() | st.integers(0, 255),
    truncated=st.booleans(),
    limit=st.none() | st.just("time"),
    seconds=st.floats(0, 1e6),
    stdout=st.integers(0),
    value=st.integers(0),
    last=st.booleans(),
    failure=st.none() | st.text(),
)


def received(message):
    return wire.unpack(*wire.receive(io.BytesIO(message).read))


@settings(deadline=None)
@given(tasks)
def test_a_request_has_all_of_a_task_but_its_standard_input(task):
    assert wire.unpack_task(*received(wire.pack_task(task))) == replace(task, stdin=b"")


@given(tasks)
def test_an_outline_has_limits_and_sizes_and_no_text(task):
    request = wire.pack_task(task)
    outline = wire.TaskOutline.from_json(wire.outline(task, request).to_json())

    assert outline == wire.TaskOutline(
        request_bytes=len(request),
        stdin_bytes=len(task.stdin),
        limits=task.limits,
        returns_value=isinstance(task.program, Function),
        keep_files=task.keep_files,
    )


@given(reports)
def test_a_report_arrives_as_it_was_sent(report):
    assert wire.Report.from_json(report.to_json()) == report


@given(st.dictionaries(paths, st.binary()))
def test_files_arrive_as_they_were_sent(files):
    assert wire.to_result(wire.Report(), [b"", b"", b"", wire.pack_files(files)]).files == files


@pytest.mark.parametrize("part", [0, 5, 12, 40])
def test_an_incomplete_message_is_none(part):
    message = wire.pack_task(SandboxTask(Python("x" * 100)))

    assert wire.receive(io.BytesIO(message[:part]).read) is None


def test_file_names_that_are_not_utf_8_arrive():
    files = {"\udcff": b"x"}

    assert wire.to_result(wire.Report(), [b"", b"", b"", wire.pack_files(files)]).files == files


@pytest.mark.parametrize(("packed", "value"), [(b"", None), (bytes(8), b""), (bytes(7) + b"\x01x", b"x")])
def test_a_value_comes_after_its_length(packed, value):
    assert wire.to_result(wire.Report(), [b"", b"", packed, b""]).value == value
