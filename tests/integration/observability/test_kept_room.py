"""Room that a run keeps on its disk: a small file system in memory, which others fill."""

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.kept_room import LOGS_BYTES, LOOKS_PER_SIZE, KeptRoom
from turnmill.sandboxes import kernel
from turnmill.training import checkpoint_room, checkpoints

MIB = 2**20
CHECKPOINT_BYTES = 20 * MIB


@pytest.fixture
def folder(contained: None, tmp_path: Path) -> RunFolder:
    kernel.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=400m,mode=700")
    folder = RunFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def room(folder: RunFolder) -> Iterator[KeptRoom]:
    with KeptRoom(folder) as room:
        yield room


def free(folder: RunFolder) -> int:
    return shutil.disk_usage(folder.path).free


def fill(folder: RunFolder, *, but: int = 0) -> Path:
    filler = folder.path / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while free(folder) > but:
            file.write(bytes(4096))
    return filler


def write_checkpoint(folder: RunFolder, step: int) -> None:
    path = checkpoints.folder_of(folder.checkpoints, step)
    path.mkdir()
    (path / "weights").write_bytes(bytes(CHECKPOINT_BYTES))
    (path / checkpoints.MARKER).write_text(json.dumps({"files": {"weights": CHECKPOINT_BYTES}}))


def test_a_run_goes_on_writing_on_a_disk_that_others_have_filled(folder: RunFolder, room: KeptRoom, caplog):
    write_checkpoint(folder, 1)
    before = free(folder)
    room.look()
    assert before - free(folder) == LOGS_BYTES + CHECKPOINT_BYTES
    filler = fill(folder)
    assert free(folder) == 0

    room.look()

    assert [record.getMessage() for record in caplog.records] == ["Disk is full, the room that was kept is used"]
    for step in range(2, 6):
        checkpoint_room.wait_for_room(folder.checkpoints)
        write_checkpoint(folder, step)
        shutil.rmtree(checkpoints.folder_of(folder.checkpoints, step - 1))
        atomic_files.append(folder.metrics, bytes(10 * MIB))
        room.look()
    # That others give room back is noticed, too.
    filler.unlink()
    before = free(folder)
    room.look()
    assert before - free(folder) == LOGS_BYTES + CHECKPOINT_BYTES


def test_room_is_given_up_while_a_checkpoint_would_still_have_too_little(folder: RunFolder, room: KeptRoom):
    write_checkpoint(folder, 1)
    room.look()
    fill(folder, but=CHECKPOINT_BYTES)

    room.look()

    assert free(folder) >= CHECKPOINT_BYTES + LOGS_BYTES


def test_no_room_is_kept_where_as_much_is_not_left_for_others(folder: RunFolder, room: KeptRoom):
    fill(folder, but=2 * LOGS_BYTES - MIB)
    before = free(folder)

    room.look()

    assert free(folder) == before


def test_a_larger_checkpoint_has_more_room_after_some_looks(folder: RunFolder, room: KeptRoom):
    before = free(folder)
    room.look()
    assert before - free(folder) == LOGS_BYTES
    write_checkpoint(folder, 1)
    before = free(folder)

    for _ in range(LOOKS_PER_SIZE):
        room.look()

    assert before - free(folder) == CHECKPOINT_BYTES


def test_the_end_of_the_watch_ends_it(folder: RunFolder):
    before = free(folder)

    with KeptRoom(folder) as room:
        room.look()
        assert [path for path in folder.path.iterdir() if path.name.startswith(".room")] == []

    assert free(folder) == before


def test_what_a_quota_refuses_is_noticed(folder: RunFolder, room: KeptRoom, monkeypatch):
    before = free(folder)
    room.look()

    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "pwrite", refuse)
    room.look()

    assert free(folder) == before


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EIO, errno.EROFS])
def test_a_file_system_that_sets_nothing_aside_is_left_alone(folder: RunFolder, room: KeptRoom, monkeypatch, code):
    tries: list[int] = []

    class Libc:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        @staticmethod
        def fallocate(descriptor: int, *_: object) -> int:
            tries.append(descriptor)
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    before = free(folder)

    for _ in range(3):
        room.look()

    assert len(tries) == 1
    assert free(folder) == before


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path):
    with KeptRoom(RunFolder(tmp_path / "taken over")) as room:
        room.look()
