"""Files of a run on a disk that is full for a while: a small file system in memory."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from turnmill.observability import atomic_files
from turnmill.observability.advantage_log import AdvantageLog
from turnmill.sandboxes import kernel

BYTES = 2 * 2**20


@pytest.fixture
def disk(contained: None, tmp_path: Path) -> Path:
    kernel.mount("tmpfs", str(tmp_path), "tmpfs", 0, f"size={BYTES},mode=700")
    return tmp_path


def fill(disk: Path, *, but: int = 0) -> Path:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - but)
    return filler


@pytest.fixture
def on_wait(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that are deleted once a write waits for room; others are kept."""
    files: list[Path] = []

    def warn(*_: object, **__: object) -> None:
        for file in files:
            file.unlink()
        files.append(Path("waited"))

    monkeypatch.setattr(atomic_files, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logging.getLogger(atomic_files.__name__), "warning", warn)
    return files


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_file_that_is_replaced_waits_for_room(disk: Path, on_wait: list[Path], size: int):
    kept = disk / "kept"
    kept.write_bytes(b"old")
    on_wait.append(fill(disk, but=8192))

    atomic_files.write_bytes(kept, bytes(size), patience=60)

    assert on_wait[1:] == [Path("waited")]
    assert kept.read_bytes() == bytes(size)
    assert list(disk.iterdir()) == [kept]


def test_a_file_that_finds_no_room_waits_once_and_stays_as_it_was(disk: Path, on_wait: list[Path]):
    """What its buffer holds is not waited for again as it is closed."""
    kept = disk / "kept"
    kept.write_bytes(b"old")
    filler = fill(disk, but=8192)

    with pytest.raises(OSError, match="No space left"):
        atomic_files.write_bytes(kept, bytes(10_000), patience=0.1)

    assert on_wait == [Path("waited")]
    assert kept.read_bytes() == b"old"
    assert sorted(disk.iterdir()) == [filler, kept]


def test_advantages_wait_for_room(disk: Path, on_wait: list[Path]):
    on_wait.append(fill(disk))
    advantages = AdvantageLog(disk)

    advantages.write(1, {"t0-0": 0.5})
    on_wait[:] = [fill(disk)]
    advantages.write_tokens(1, [("t0-0", 0, [0.5] * 1000)])

    assert advantages.read(1) == {"t0-0": 0.5}
    assert [len(values) for _, _, values in advantages.read_tokens(1)] == [1000]
