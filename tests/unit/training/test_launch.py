"""Which failures of a run are tried again."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.observability.run_folder import RunFolder
from turnmill.training import processes
from turnmill.training.launch import RAY_RETRIES, _with_retries
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
