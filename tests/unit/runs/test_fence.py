import json
import os
from pathlib import Path

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.fence import claim
from turnmill.training import checkpoints
from turnmill.training.checkpoints import RunState


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "team-a" / "babyai-1a2b3c4d"


def write_checkpoint(folder: Path, step: int) -> None:
    root = folder / "checkpoints"
    checkpoints.folder_of(root, step).mkdir(parents=True)
    checkpoints.complete(root, RunState(step, slots=(), kl_coefficient=0.0), keep=2)


def test_the_run_path_links_to_the_newest_attempt(run_dir: Path):
    claim(run_dir, 1)
    second = claim(run_dir, 2)

    assert run_dir.resolve() == second.resolve()


def test_an_attempt_takes_over_the_checkpoints_of_the_previous_one(run_dir: Path):
    write_checkpoint(claim(run_dir, 1), step=5)

    taken_over = checkpoints.latest(claim(run_dir, 2) / "checkpoints")

    assert taken_over is not None
    assert taken_over.state.step == 5


@pytest.mark.parametrize("claim_name", ["team-runs", None])
def test_storage_that_cannot_be_written_to_is_told_with_user_and_claim(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, claim_name: str | None
):
    # Not even root can make a folder there.
    if claim_name:
        monkeypatch.setenv("TURNMILL_RUNS_CLAIM", claim_name)

    with pytest.raises(RunFailedError) as caught:
        claim(Path("/sys/kernel") / "team-a" / run_dir.name, 1)

    where = "/sys/kernel (claim team-runs)" if claim_name else "/sys/kernel"
    assert str(caught.value).startswith(f"{where} is not writable by user {os.getuid()}, group {os.getgid()}: ")
    assert caught.value.cause == "storage"
    assert not caught.value.is_final


def test_an_attempt_without_a_previous_one_has_an_empty_folder(run_dir: Path):
    assert list(claim(run_dir, 3).iterdir()) == []


@pytest.mark.parametrize("number", [1, 2])
def test_an_attempt_that_is_not_newer_than_the_current_one_is_refused(run_dir: Path, number: int):
    claim(run_dir, 2)

    with pytest.raises(RunFailedError, match=rf"Attempt {number} .* is stale: attempt 2 has begun") as caught:
        claim(run_dir, number)

    assert caught.value.cause == "stale_attempt"


def test_a_stale_attempt_cannot_complete_a_checkpoint(run_dir: Path):
    stale = claim(run_dir, 1)
    incomplete = checkpoints.folder_of(stale / "checkpoints", 6)
    incomplete.mkdir(parents=True)
    newest = claim(run_dir, 2)

    with pytest.raises(FileNotFoundError):
        checkpoints.complete(stale / "checkpoints", RunState(6, slots=(), kl_coefficient=0.0), keep=2)

    assert checkpoints.latest(newest / "checkpoints") is None


def test_a_checkpoint_of_a_stale_attempt_is_never_the_latest(run_dir: Path):
    stale = claim(run_dir, 1)
    write_checkpoint(claim(run_dir, 2), step=5)

    write_checkpoint(stale, step=9)

    newest = checkpoints.latest(run_dir / "checkpoints")
    third = checkpoints.latest(claim(run_dir, 3) / "checkpoints")
    assert newest is not None
    assert third is not None
    assert (newest.state.step, third.state.step) == (5, 5)
    assert not stale.exists()


def test_a_stale_attempt_cannot_append_metrics(run_dir: Path):
    stale = RunFolder(claim(run_dir, 1))
    stale.append_metrics(1, {"turnmill/reward_mean": 0.5})
    newest = RunFolder(claim(run_dir, 2))

    with pytest.raises(FileNotFoundError):
        stale.append_metrics(2, {"turnmill/reward_mean": 0.9})

    assert [row["step"] for row in newest.read_metrics()] == [1]


def test_an_attempt_leaves_other_runs_of_the_namespace_unchanged(run_dir: Path):
    other = claim(run_dir.with_name("babyai-1a2b3c4d5"), 1)
    (other / "job.yaml").write_text(json.dumps({}))

    claim(run_dir, 7)

    assert (other / "job.yaml").exists()
