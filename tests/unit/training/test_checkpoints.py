import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from turnmill.core.errors import RunFailedError
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


def damage(root: Path, step: int, *, how: str) -> None:
    weights, marker = folder_of(root, step) / "weights.bin", folder_of(root, step) / MARKER
    match how:
        case "truncated":
            weights.write_text("wei")
        case "changed":
            weights.write_text("WEIGHTS")
        case "missing":
            weights.unlink()
        case "marker":
            marker.write_text("{")


@pytest.mark.parametrize("how", ["truncated", "changed", "missing", "marker"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_the_latest(tmp_path: Path, how: str):
    complete(tmp_path, 10, 20, 30, keep=3)
    for step in (10, 20, 30):
        checkpoints.write_digests(tmp_path, step)
    damage(tmp_path, 30, how=how)

    checkpoints.set_aside_damaged(tmp_path)

    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state == state(20)
    assert checkpoints.damaged(tmp_path) == [tmp_path / "damaged_global_step_30"]


def test_a_checkpoint_of_the_same_step_can_be_written_and_damaged_again(tmp_path: Path):
    complete(tmp_path, 10)
    for _ in range(2):
        complete(tmp_path, 20)
        damage(tmp_path, 20, how="truncated")
        checkpoints.set_aside_damaged(tmp_path)

    assert len(checkpoints.damaged(tmp_path)) == 1
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.state.step == 10


def test_if_all_checkpoints_are_damaged_the_run_fails_instead_of_starting_again(tmp_path: Path):
    complete(tmp_path, 10, 20)
    for step in (10, 20):
        damage(tmp_path, step, how="truncated")

    for _ in range(2):
        with pytest.raises(RunFailedError, match=r"All checkpoints are damaged .*has 3 bytes instead of 7"):
            checkpoints.set_aside_damaged(tmp_path)


def test_undamaged_checkpoints_and_those_without_digests_or_sizes_stay(tmp_path: Path):
    complete(tmp_path, 10, 20, 30, keep=3)
    checkpoints.write_digests(tmp_path, 20)
    old = folder_of(tmp_path, 30) / MARKER
    old.write_text(json.dumps({key: value for key, value in json.loads(old.read_text()).items() if key != "files"}))
    read: list[int] = []

    checkpoints.set_aside_damaged(tmp_path, lambda: read.append(1))
    assert steps(tmp_path) == [10, 20, 30]
    assert not read
    shutil.rmtree(folder_of(tmp_path, 30))
    checkpoints.set_aside_damaged(tmp_path, lambda: read.append(1))

    assert steps(tmp_path) == [10, 20]
    assert read == [1]


def test_digests_of_a_deleted_checkpoint_are_not_written(tmp_path: Path):
    checkpoints.write_digests(tmp_path, 10)

    assert not folder_of(tmp_path, 10).exists()


def test_files_are_flushed_to_disk_before_the_marker_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_incomplete(tmp_path, 10)
    (folder / "actor").mkdir()
    (folder / "actor" / "state.bin").write_text("state")
    flushed: list[str] = []
    flush = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    checkpoints.complete(tmp_path, state(10), keep=1)

    *before, marker = flushed
    assert {str(folder / "actor" / "state.bin"), str(folder / "weights.bin"), str(folder)} <= set(before)
    assert before.index(str(folder / "actor" / "state.bin")) < before.index(str(folder / "actor"))
    assert MARKER in marker


def test_a_checkpoint_that_cannot_be_written_names_place_reason_and_way_out(tmp_path: Path):
    error = checkpoints.failed_to_write(tmp_path, 20, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    assert error.cause == "checkpoint"
    assert not error.is_final
    assert f"step 20 could not be written to {tmp_path}/global_step_20" in str(error)
    assert "[Errno 28] No space left on device. Earlier checkpoints are kept" in str(error)
