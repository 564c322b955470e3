import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turnmill.observability import atomic_files


def test_what_one_write_does_not_take_is_written_by_further_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Linux takes at most 2 GiB at once."""
    write, path, content = os.write, tmp_path / "log", os.urandom(1000)
    monkeypatch.setattr(os, "write", lambda descriptor, part: write(descriptor, part[:300]))

    atomic_files.append(path, content)

    assert path.read_bytes() == content


def test_a_full_disk_is_named():
    with pytest.raises(OSError, match=r"only 0 of 5 bytes were written to /dev/full\. Free some space") as caught:
        atomic_files.append(Path("/dev/full"), b"line\n")

    assert caught.value.errno == errno.ENOSPC


def test_another_error_is_not_taken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int, part: bytes) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "write", fail)

    with pytest.raises(OSError, match="broken"):
        atomic_files.append(tmp_path / "log", b"line\n")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bytes]]:
    """A disk that takes so many bytes of each write, in order, and none where that is 0; then all of them."""
    write = os.write
    monkeypatch.setattr(atomic_files, "LOOK_SECONDS", 0.001)

    def takes(*counts: int) -> list[bytes]:
        remaining, seen = iter(counts), []

        def limited(descriptor: int, content: bytes) -> int:
            count = next(remaining, len(content))
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            seen.append(bytes(content[:count]))
            return write(descriptor, content[:count])

        monkeypatch.setattr(os, "write", limited)
        return seen

    return takes


def test_lines_wait_for_room(tmp_path: Path, disk, caplog):
    disk(0, 0, 0)

    atomic_files.append(tmp_path / "log", b"line\n", patience=60)

    assert (tmp_path / "log").read_bytes() == b"line\n"
    assert [record.getMessage() for record in caplog.records] == ["Disk is full, waits for room"]


@pytest.mark.parametrize(
    ("taken", "second"),
    [(0, b"one\ntwo\nthree\n"), (2, b"one\ntwo\nthree\n"), (4, b"two\nthree\n"), (6, b"two\nthree\n"), (9, b"three\n")],
)
def test_a_line_that_a_full_disk_took_in_part_is_written_again_as_a_whole(tmp_path: Path, disk, taken, second):
    """Another process may have appended to it meanwhile; readers find the last object of a line."""
    seen = disk(*[taken, 0] if taken else [0])

    atomic_files.append(tmp_path / "log", b"one\ntwo\nthree\n", patience=60)

    assert seen[-1] == second


def test_lines_wait_no_longer_than_they_may(disk):
    with pytest.raises(OSError, match="only 0 of 5 bytes were written") as caught:
        atomic_files.append(Path("/dev/full"), b"line\n", patience=0.01)

    assert caught.value.errno == errno.ENOSPC
