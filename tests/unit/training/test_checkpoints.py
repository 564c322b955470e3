import shutil
from pathlib import Path

import pytest

from turnmill.rollout.verlog.slot import SlotState
from turnmill.training import checkpoints
from turnmill.training.checkpoints import MARKER, RunState, folder_of


def state(step: int) -> RunState:
    slots = (SlotState(0, 3, 40, ("ACTION: go", "")), SlotState(1, 2, 41, ()))
    return RunState(step=step, slots=slots, kl_coefficient=0.02)


def write_incomplete(root: Path, step: int) -> Path:
    """Write what verl writes: weights, without the marker of a complete checkpoint."""
    folder = folder_of(root, step)
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text("weights")
    return folder


def complete(root: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        write_incomplete(root, step)
        checkpoints.complete(root, state(step), keep=keep)


def steps(root: Path) -> list[int]:
    return sorted(int(path.name.rsplit("_", 1)[1]) for path in root.iterdir())


def test_without_a_checkpoint_there_is_nothing_to_resume_from(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "missing") is None


def test_a_checkpoint_returns_the_state_it_was_completed_with(tmp_path):
    complete(tmp_path, 10)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state == state(10)
    assert found.path == folder_of(tmp_path, 10)


def test_an_incomplete_checkpoint_is_not_the_latest(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state.step == 10


def test_the_latest_checkpoint_is_that_of_the_highest_step(tmp_path):
    complete(tmp_path, 9, 100, 20, keep=3)

    found = checkpoints.latest(tmp_path)

    assert found is not None
    assert found.state.step == 100


def test_only_the_newest_complete_checkpoints_are_kept(tmp_path):
    complete(tmp_path, 8, 9, 10, 11, keep=2)

    assert steps(tmp_path) == [10, 11]


def test_incomplete_checkpoints_do_not_count_towards_the_number_kept(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 15)
    complete(tmp_path, 20)

    assert steps(tmp_path) == [10, 15, 20]


def test_incomplete_checkpoints_are_discarded(tmp_path):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    checkpoints.discard_incomplete(tmp_path)

    assert steps(tmp_path) == [10]


def test_a_partially_deleted_checkpoint_is_not_resumed_from(tmp_path, monkeypatch):
    complete(tmp_path, 10)
    write_incomplete(tmp_path, 20)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt(path)

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.complete(tmp_path, state(20), keep=1)

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 20
    assert not (folder_of(tmp_path, 10) / MARKER).exists()
