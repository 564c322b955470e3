"""Retries of failed runs, and the detection of stalled ones."""

import contextlib
import errno
import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray

from support.jobs import job
from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.jobs import parse_job
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder, Silence
from turnmill.runs import preparation, processes
from turnmill.runs.kept_room import KeptRoom
from turnmill.runs.local import RAY_RETRIES, _with_retries
from turnmill.runs.preparation import finalize_run
from turnmill.runs.ray_cluster import RAY, _restore, parent_of_sockets
from turnmill.runs.watch import start_silence, watch
from turnmill.training.recorder import ATTEMPT


@pytest.fixture(autouse=True)
def _restore_attempt_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, "")


def count_attempts(causes: Sequence[str], retries: int, path: Path) -> int:
    """Return how many attempts a run takes that fails with these causes in turn and then succeeds."""
    folder = RunFolder(path)
    folder.create()
    count = 0

    def train(can_retry: bool) -> None:
        nonlocal count
        assert can_retry == (sum(cause != RAY for cause in causes[:count]) < retries)
        count += 1
        if count <= len(causes):
            raise RunFailedError("it broke", causes[count - 1])

    _with_retries(train, lambda: None, parse_job(job(retries=retries)), folder)
    return count


def test_a_run_is_retried_as_often_as_its_job_allows(tmp_path):
    assert count_attempts(["stalled", "stalled"], 2, tmp_path) == 3
    with pytest.raises(RunFailedError):
        count_attempts(["stalled", "stalled"], 1, tmp_path)


def test_every_attempt_passes_its_number_to_the_processes_it_starts(tmp_path):
    folder, numbers = RunFolder(tmp_path), []
    folder.create()

    def train(can_retry: bool) -> None:
        numbers.append(os.environ[ATTEMPT])
        if len(numbers) < 3:
            raise RunFailedError("it broke", "stalled")

    _with_retries(train, lambda: None, parse_job(job(retries=2)), folder)

    assert numbers == ["1", "2", "3"]


def test_a_permanent_failure_is_not_retried(tmp_path):
    with pytest.raises(RunFailedError):
        count_attempts(["environment"], 5, tmp_path)


def test_a_slow_start_of_ray_uses_no_retry_of_the_job(tmp_path):
    assert count_attempts(["ray"] * RAY_RETRIES, 0, tmp_path) == RAY_RETRIES + 1


def test_a_run_ends_if_ray_never_starts(tmp_path):
    with pytest.raises(RunFailedError):
        count_attempts(["ray"] * (RAY_RETRIES + 1), 5, tmp_path)


def test_a_disk_that_is_full_at_the_start_of_an_attempt_uses_a_retry(tmp_path):
    folder, errors = RunFolder(tmp_path), [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 2
    folder.create()

    def train(can_retry: bool) -> None:
        if errors:
            raise errors.pop()

    with pytest.raises(RunFailedError, match="No space left on device") as failed:
        _with_retries(train, lambda: None, parse_job(job(retries=0)), folder)
    _with_retries(train, lambda: None, parse_job(job(retries=1)), folder)

    errors.append(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(OSError, match="Input/output error"):
        _with_retries(train, lambda: None, parse_job(job(retries=1)), folder)

    assert failed.value.cause == "run_folder"


def test_the_next_attempt_waits_for_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("turnmill.runs.local.ROOM_SECONDS", 0.0)
    looks = iter(["full", "full", None])
    monkeypatch.setattr(RunFolder, "write_problem", lambda _: next(looks))

    assert count_attempts(["stalled"], 1, tmp_path) == 2
    assert list(looks) == []


def test_a_disk_that_stays_full_ends_the_run(tmp_path, monkeypatch):
    times = itertools.count(0, 400)
    monkeypatch.setattr("turnmill.runs.local.time.sleep", lambda _: None)
    monkeypatch.setattr("turnmill.runs.local.time.monotonic", lambda: next(times))
    monkeypatch.setattr(RunFolder, "write_problem", lambda _: "full")

    with pytest.raises(RunFailedError, match="cannot be written to: full"):
        count_attempts(["stalled"], 2, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with (
        pytest.raises(SettingsError, match="cannot be written to: Not a directory"),
        processes.owned(tmp_path / "file" / "run"),
    ):
        pass


@pytest.mark.parametrize("error", [RunFailedError("it broke", "stalled"), KeyboardInterrupt()])
def test_a_full_disk_does_not_hide_the_error_that_ended_a_run(error: BaseException, tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    folder.marks.unlink(missing_ok=True)
    folder.marks.symlink_to("/dev/full")

    with pytest.raises(type(error)), finalize_run(folder):
        raise error


@pytest.mark.parametrize("has_room_again", [True, False])
def test_a_complete_run_waits_for_room_on_a_full_disk(has_room_again: bool, tmp_path, monkeypatch):
    folder, waits, write = RunFolder(tmp_path), [], os.write
    folder.create()

    def write_to_full_disk(descriptor: int, content: bytes) -> int:
        if has_room_again and waits:
            return write(descriptor, content)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_files.os, "write", write_to_full_disk)
    monkeypatch.setattr(atomic_files.time, "sleep", waits.append)
    monkeypatch.setattr(preparation, "PATIENCE", 0.2)
    ends = contextlib.nullcontext() if has_room_again else pytest.raises(RunFailedError, match="All steps are complete")
    with ends as raised, finalize_run(folder):
        pass

    assert waits
    assert folder.read_summary() if has_room_again else raised.value.cause == "run_folder"


def test_a_jump_of_the_clock_is_not_a_stall(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    folder.beat()
    waits = iter([([], ["run"]), (["run"], [])])

    def wait(*_: object, **__: object) -> tuple[list[str], list[str]]:
        # The heartbeat looks old, as after the machine has slept.
        os.utime(folder.heartbeat, (0, 0))
        return next(waits)

    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", lambda _: "done")

    assert watch("run", parse_job(job()), folder, lambda _: None) == "done"


def test_a_run_without_progress_is_stalled(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    times = iter(range(0, 10_000, 400))
    monkeypatch.setattr("ray.wait", lambda *_, **__: ([], ["run"]))
    monkeypatch.setattr("turnmill.runs.watch.time.monotonic", lambda: next(times))

    with pytest.raises(RunFailedError, match="Nothing progressed for 800 s"):
        watch("run", parse_job(job()), folder, lambda _: None)


def test_a_clock_that_is_set_back_does_not_stop_the_watch(tmp_path, monkeypatch):
    """Ray's deadlines are times of day: until one of them, it may wait for an hour more."""
    folder = RunFolder(tmp_path)
    folder.create()
    waits: list[float] = []

    def wait(_: object, *, timeout: float) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        return (["run"], []) if len(waits) == 3 else ([], ["run"])

    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", lambda _: "done")

    assert watch("run", parse_job(job()), folder, lambda _: None) == "done"
    assert waits == [0, 0, 0]


class Clock:
    """A run whose time passes between the polls of its supervision: `(seconds, what then happens)` in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events: tuple[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self._events = iter(events)
        monkeypatch.setattr("ray.wait", self._wait)
        monkeypatch.setattr("ray.get", lambda _: "done")
        monkeypatch.setattr("turnmill.runs.watch.time.monotonic", lambda: self.now)

    def _wait(self, *_: object, **__: object) -> tuple[list[str], list[str]]:
        seconds, happens = next(self._events, (0.0, None))
        self.now += seconds
        if happens is None:
            return ["run"], []
        happens()
        return [], ["run"]


def test_a_run_keeps_room_on_its_disk_while_it_is_watched(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    looks: list[KeptRoom] = []
    monkeypatch.setattr(KeptRoom, "look", lambda room: looks.append(room))
    Clock(monkeypatch, *[(1, lambda: None)] * 3)

    assert watch("run", parse_job(job()), folder, lambda _: None) == "done"
    assert len(looks) == 3


def test_a_large_model_may_take_long_to_load_to_compile_and_to_write(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    spec = parse_job(job())
    minute, beats = 60, itertools.count()

    def allow(silence: Silence | None) -> None:
        folder.allow_silence(silence)
        # File systems do not tell times apart that are within milliseconds.
        os.utime(folder.heartbeat, (next(beats),) * 2)

    allow(start_silence(spec))
    clock = Clock(
        monkeypatch,
        (20 * minute, lambda: None),
        (5 * minute, lambda: allow(None)),
        (9 * minute, lambda: allow(Silence(3600, "training.timeouts.checkpointSeconds"))),
        (10 * minute, lambda: None),
        (49 * minute, lambda: allow(None)),
        (9 * minute, lambda: None),
    )

    assert watch("run", spec, folder, lambda _: None) == "done"
    assert clock.now == 102 * minute


@pytest.mark.parametrize(
    ("silence", "limit", "setting"),
    [
        (None, 600, "training.stallTimeoutSeconds"),
        (Silence(1800, "training.timeouts.startSeconds"), 1800, "training.timeouts.startSeconds"),
        (Silence(30, "training.timeouts.checkpointSeconds"), 30, "training.timeouts.checkpointSeconds"),
    ],
)
def test_each_phase_has_its_own_limit(tmp_path, monkeypatch, silence, limit, setting):
    folder = RunFolder(tmp_path)
    folder.create()
    folder.allow_silence(silence)
    Clock(monkeypatch, (limit - 1, lambda: None), (2, lambda: None))

    with pytest.raises(RunFailedError, match=rf"for {limit + 1} s \({setting} is {limit}\)"):
        watch("run", parse_job(job()), folder, lambda _: None)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_trainer_that_breaks_because_the_disk_is_full_fails_with_that_cause(tmp_path, monkeypatch, is_full):
    folder = RunFolder(tmp_path)
    folder.create()
    broken = ray.exceptions.RayTaskError("run", "Traceback\nValueError: no rows", ValueError("no rows"))
    monkeypatch.setattr("ray.wait", lambda *_, **__: (["run"], []))
    monkeypatch.setattr("ray.get", Mock(side_effect=broken))
    if is_full:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr("turnmill.observability.run_folder.atomic_files.write_text", Mock(side_effect=full))

    with pytest.raises(RunFailedError, match="No space left on device" if is_full else "no rows") as failed:
        watch("run", parse_job(job()), folder, lambda _: None)

    assert failed.value.cause == ("run_folder" if is_full else "trainer")
    assert not (tmp_path / "probe").exists()


def test_ray_sockets_go_to_tmp_if_the_temporary_folder_has_a_long_path(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/with/a/long/name")
    assert parent_of_sockets() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert parent_of_sockets() == "/scratch"


def test_a_signal_that_ended_the_run_stays_ignored(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _restore({signal.SIGINT: before})
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _restore({signal.SIGINT: before})
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)
