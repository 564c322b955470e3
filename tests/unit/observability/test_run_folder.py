import json
import math
import os
import time
from pathlib import Path

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import VARIABLE, RunFolder, Silence


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def test_metrics_are_read_as_they_were_written(folder: RunFolder):
    folder.append_metrics(1, {"turnmill/success": 0.25, "turnmill/turns": 128})

    (row,) = folder.read_metrics()

    assert row["step"] == 1
    assert row["turnmill/success"] == 0.25
    assert row["turnmill/turns"] == 128


def test_nan_and_infinities_become_null(folder: RunFolder):
    folder.append_metrics(1, {"a": math.nan, "b": math.inf, "c": [1.0, -math.inf]})

    row = json.loads(folder.metrics.read_text(), parse_constant=pytest.fail)

    assert (row["a"], row["b"], row["c"]) == (None, None, [1.0, None])


def test_array_scalars_are_written_as_numbers(folder: RunFolder):
    class Scalar:
        def tolist(self) -> float:
            return 0.5

    folder.append_metrics(1, {"a": Scalar()})

    assert next(folder.read_metrics())["a"] == 0.5


def test_readers_skip_an_incomplete_last_line(folder: RunFolder):
    folder.append_metrics(1, {})
    atomic_files.append(folder.metrics, b'{"step":2,"turnm')

    assert [row["step"] for row in folder.read_metrics()] == [1]


def test_a_line_written_after_an_incomplete_line_is_read(folder: RunFolder):
    folder.append_metrics(1, {})
    atomic_files.append(folder.metrics, b'{"step":2,"turnm')
    folder.append_metrics(2, {"a": '{"step":9'})

    assert [row["step"] for row in folder.read_metrics()] == [1, 2]


def test_a_resumed_run_drops_later_steps_and_the_incomplete_line(folder: RunFolder):
    for step in range(5):
        folder.append_metrics(step, {"turnmill/turns": step})
    atomic_files.append(folder.metrics, b'{"step":5,')

    folder.truncate_after(2)
    folder.append_metrics(3, {"turnmill/turns": 30})

    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [(row["step"], row["turnmill/turns"]) for row in rows] == [(0, 0), (1, 1), (2, 2), (3, 30)]


def test_truncating_a_run_without_metrics_leaves_none(folder: RunFolder):
    folder.truncate_after(3)

    assert list(folder.read_metrics()) == []


def test_a_failed_write_leaves_the_file_as_it_was(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    folder.write_summary({"success_final": 1.0})

    def full_disk(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="disk full"):
        folder.write_summary({"success_final": 0.0})

    assert folder.read_summary() == {"success_final": 1.0}
    assert sorted(path.name for path in folder.path.iterdir() if path.is_file()) == ["heartbeat", "summary.json"]


def test_create_removes_partial_files_of_killed_writers(folder: RunFolder):
    leftover = folder.path / f".summary.json.123{atomic_files.TEMPORARY_SUFFIX}"
    leftover.write_text("{")

    folder.create()

    assert not leftover.exists()


def test_a_heartbeat_resets_the_seconds_since_progress(folder: RunFolder):
    long_ago = time.time() - 1000
    os.utime(folder.heartbeat, (long_ago, long_ago))
    before = folder.seconds_since_progress()

    RunFolder(folder.path).beat()

    assert before >= 1000
    assert folder.seconds_since_progress() < before


def test_heartbeats_in_quick_succession_touch_the_file_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    clock = iter([10.0, 10.05, 10.09, 10.11])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    touched: list[Path] = []
    monkeypatch.setattr(os, "utime", touched.append)

    for _ in range(4):
        folder.beat()

    assert touched == [folder.heartbeat, folder.heartbeat]


def test_a_new_attempt_records_the_last_heartbeat_of_the_previous_one(folder: RunFolder):
    os.utime(folder.heartbeat, (1234.5, 1234.5))

    folder.create()

    first, second = folder.read_marks()
    assert first["previous_beat"] is None
    assert second["previous_beat"] == 1234.5


def test_the_first_failure_is_kept_until_the_next_attempt(folder: RunFolder):
    folder.create()
    assert folder.read_failure() is None

    folder.write_failure(RunFailedError("five episodes in a row failed", "environment"))
    folder.write_failure(RunFailedError("a consequence of it", "rollout"))

    failure = folder.read_failure()
    assert failure is not None
    assert (str(failure), failure.cause) == ("five episodes in a row failed", "environment")
    folder.create()
    assert folder.read_failure() is None


def test_the_time_that_a_run_may_be_silent_is_kept_over_heartbeats(folder: RunFolder):
    assert folder.allowed_silence() is None
    folder.allow_silence(Silence(3600, "training.timeouts.startSeconds"))
    folder.beat()

    assert RunFolder(folder.path).allowed_silence() == Silence(3600, "training.timeouts.startSeconds")
    folder.allow_silence(None)
    assert RunFolder(folder.path).allowed_silence() is None


def test_a_heartbeat_is_as_rare_as_the_caller_asks(folder: RunFolder):
    folder.beat()
    os.utime(folder.heartbeat, (1, 1))

    folder.beat(every=3600)
    assert folder.last_beat() == 1
    folder.beat(every=0)
    assert folder.last_beat() != 1


def test_a_process_of_a_run_knows_its_folder(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert RunFolder.of_process() is None
    monkeypatch.setenv(VARIABLE, str(folder.path))

    found = RunFolder.of_process()

    assert found is not None
    assert found.path == folder.path
