import errno
import os
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
