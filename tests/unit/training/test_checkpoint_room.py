import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from turnmill.observability import atomic_files
from turnmill.training import checkpoint_room, checkpoints

Usage = type(shutil.disk_usage("/"))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[int]]:
    """Sets the free bytes of the disk, look by look; the last ones stay."""

    def set_free(*looks: int) -> Iterator[int]:
        remaining = iter(looks)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1000, 0, next(remaining, looks[-1])))
        return remaining

    monkeypatch.setattr(atomic_files, "LOOK_SECONDS", 0.001)
    return set_free


@pytest.fixture
def newest_has_100_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "newest_size", lambda _: 100)


@pytest.mark.usefixtures("newest_has_100_bytes")
def test_a_checkpoint_waits_for_room_of_the_size_of_the_newest_one(tmp_path: Path, free, caplog):
    looks = free(0, 100, 101, 7)

    checkpoint_room.wait_for_room(tmp_path)

    assert list(looks) == [7]
    assert [record.getMessage() for record in caplog.records] == ["Disk is full, waits for room"]


def test_the_first_checkpoint_waits_for_any_room(tmp_path: Path, free):
    looks = free(0, 1, 7)

    checkpoint_room.wait_for_room(tmp_path)

    assert list(looks) == [7]


@pytest.mark.usefixtures("newest_has_100_bytes")
def test_on_a_disk_that_stays_full_the_checkpoint_is_tried_all_the_same(tmp_path: Path, free, monkeypatch):
    """It may be smaller than the newest one, and else fails with what is missing."""
    monkeypatch.setattr(atomic_files, "PATIENCE", 0.01)
    free(99)

    checkpoint_room.wait_for_room(tmp_path)


def test_a_checkpoint_whose_folder_is_gone_is_waited_for_by_nobody(tmp_path: Path):
    checkpoint_room.wait_for_room(tmp_path / "taken over")


def test_a_checkpoint_that_cannot_be_written_names_place_reason_and_way_out(tmp_path: Path):
    error = checkpoint_room.failed_to_write(tmp_path, 20, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    assert error.cause == "checkpoint"
    assert not error.is_final
    assert f"step 20 could not be written to {tmp_path}/global_step_20" in str(error)
    assert "[Errno 28] No space left on device. Earlier checkpoints are kept" in str(error)


def test_a_checkpoint_of_an_attempt_that_is_no_longer_the_newest_cannot_be_written(tmp_path: Path):
    error = checkpoint_room.failed_to_write(
        tmp_path / "taken over", 20, OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    )

    assert error.cause == "checkpoint"
    assert "the free space is unknown (No such file or directory)" in str(error)
