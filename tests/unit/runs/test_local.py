"""Retries of failed runs, and the detection of stalled ones."""

import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.jobs import job
from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.local import RAY_RETRIES, _parent_of_sockets, _restore, _with_retries
from turnmill.runs.preparation import finalize_run
from turnmill.runs.watch import watch
from turnmill.training.recorder import ATTEMPT


@pytest.fixture(autouse=True)
def _restore_attempt_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, "")


def count_attempts(causes: Sequence[str], retries: int, path: Path) -> int:
    """Return how many attempts a run takes that fails with these causes in turn and then succeeds."""
    folder = RunFolder(path)
    folder.create()
    count = 0

    def train() -> None:
        nonlocal count
        count += 1
        if count <= len(causes):
            raise RunFailedError("it broke", causes[count - 1])

    with processes.owned(folder.path) as owner:
        _with_retries(train, retries, folder, owner)
    return count


def test_a_run_is_retried_as_often_as_its_job_allows(tmp_path):
    assert count_attempts(["stalled", "stalled"], 2, tmp_path) == 3
    with pytest.raises(RunFailedError):
        count_attempts(["stalled", "stalled"], 1, tmp_path)


def test_every_attempt_passes_its_number_to_the_processes_it_starts(tmp_path):
    folder, numbers = RunFolder(tmp_path), []
    folder.create()

    def train() -> None:
        numbers.append(os.environ[ATTEMPT])
        if len(numbers) < 3:
            raise RunFailedError("it broke", "stalled")

    with processes.owned(folder.path) as owner:
        _with_retries(train, 2, folder, owner)

    assert numbers == ["1", "2", "3"]


def test_a_permanent_failure_is_not_retried(tmp_path):
    with pytest.raises(RunFailedError):
        count_attempts(["environment"], 5, tmp_path)


def test_a_slow_start_of_ray_uses_no_retry_of_the_job(tmp_path):
    assert count_attempts(["ray"] * RAY_RETRIES, 0, tmp_path) == RAY_RETRIES + 1


def test_a_run_ends_if_ray_never_starts(tmp_path):
    with pytest.raises(RunFailedError):
        count_attempts(["ray"] * (RAY_RETRIES + 1), 5, tmp_path)


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
    with pytest.raises(OSError, match="The disk is full"), finalize_run(folder):
        pass


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


def test_ray_sockets_go_to_tmp_if_the_temporary_folder_has_a_long_path(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/with/a/long/name")
    assert _parent_of_sockets() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert _parent_of_sockets() == "/scratch"


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
