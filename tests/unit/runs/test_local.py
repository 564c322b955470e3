"""Which failures of a run are tried again, and what does not fail one."""

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
def _leave_no_attempt_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, "")


def tries(causes: Sequence[str], retries: int, path: Path) -> int:
    """How often a run is tried that fails for these causes, one after the other, and then does not."""
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


def test_a_run_is_tried_as_often_as_its_job_says(tmp_path):
    assert tries(["stalled", "stalled"], 2, tmp_path) == 3
    with pytest.raises(RunFailedError):
        tries(["stalled", "stalled"], 1, tmp_path)


def test_every_try_tells_its_number_to_the_processes_that_it_starts(tmp_path):
    folder, told = RunFolder(tmp_path), []
    folder.create()

    def train() -> None:
        told.append(os.environ[ATTEMPT])
        if len(told) < 3:
            raise RunFailedError("it broke", "stalled")

    with processes.owned(folder.path) as owner:
        _with_retries(train, 2, folder, owner)

    assert told == ["1", "2", "3"]


def test_what_would_fail_again_is_not_tried_again(tmp_path):
    with pytest.raises(RunFailedError):
        tries(["environment"], 5, tmp_path)


def test_ray_that_does_not_start_in_time_costs_no_retry(tmp_path):
    assert tries(["ray"] * RAY_RETRIES, 0, tmp_path) == RAY_RETRIES + 1


def test_ray_that_never_starts_ends_the_run(tmp_path):
    with pytest.raises(RunFailedError):
        tries(["ray"] * (RAY_RETRIES + 1), 5, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with (
        pytest.raises(SettingsError, match="cannot be written to: Not a directory"),
        processes.owned(tmp_path / "file" / "run"),
    ):
        pass


@pytest.mark.parametrize("error", [RunFailedError("it broke", "stalled"), KeyboardInterrupt()])
def test_a_full_disk_does_not_hide_how_a_run_ended(error: BaseException, tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    folder.marks.unlink(missing_ok=True)
    folder.marks.symlink_to("/dev/full")

    with pytest.raises(type(error)), finalize_run(folder):
        raise error
    with pytest.raises(OSError, match="No space left"), finalize_run(folder):
        pass


def test_a_clock_that_jumps_is_no_stall(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    folder.beat()
    waits = iter([([], ["run"]), (["run"], [])])

    def wait(*_: object, **__: object) -> tuple[list[str], list[str]]:
        # As long ago as it is after a sleep.
        os.utime(folder.heartbeat, (0, 0))
        return next(waits)

    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", lambda _: "done")

    assert watch("run", parse_job(job()), folder, lambda _: None) == "done"


def test_silence_is_a_stall(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    times = iter(range(0, 10_000, 400))
    monkeypatch.setattr("ray.wait", lambda *_, **__: ([], ["run"]))
    monkeypatch.setattr("turnmill.runs.watch.time.monotonic", lambda: next(times))

    with pytest.raises(RunFailedError, match="Nothing progressed for 800 s"):
        watch("run", parse_job(job()), folder, lambda _: None)


def test_ray_s_sockets_have_paths_that_are_short_enough(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/with/a/long/name")
    assert _parent_of_sockets() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert _parent_of_sockets() == "/scratch"


def test_a_signal_that_has_ended_the_run_stays_ignored(monkeypatch):
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
