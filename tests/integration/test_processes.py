import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import alive
from turnmill.core.errors import SettingsError
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.runs import processes
from turnmill.runs.processes import clean_up_after, find_marked, owned, terminate_marked

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
# A child in its own session that outlives its parent, as Ray's processes do.
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen]]:
    made: list[subprocess.Popen] = []
    yield made
    for process in made:
        process.kill()
        process.wait(10)


def start(started: list[subprocess.Popen], code: str, mark: str | None = None) -> subprocess.Popen:
    environment = {**os.environ, PROCESS_MARK: mark} if mark else None
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    return process


def write_record(record: Path, mark: str, *folders: Path) -> None:
    """Write the record that a killed attempt leaves."""
    record.write_text(json.dumps({"mark": mark, "pid": 0, "folders": [str(folder) for folder in folders]}))


def test_children_and_orphaned_grandchildren_end_with_the_attempt(tmp_path, started):
    with owned(tmp_path / "run"):
        child = start(started, SLEEP)
        parent = start(started, ORPHAN)
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert alive(grandchild)

    assert child.wait(10) is not None
    assert not alive(grandchild)
    assert not (tmp_path / "run" / "attempt.json").exists()
    assert PROCESS_MARK not in os.environ


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch, started):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    process = start(started, STUBBORN, "mark-of-the-stubborn")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"

    terminate_marked("mark-of-the-stubborn")

    assert process.wait(10) == -9


def test_processes_with_another_mark_or_none_are_not_ended(started):
    mine, other, unmarked = (start(started, SLEEP, mark) for mark in ("mark-a", "mark-b", None))

    terminate_marked("mark-a")

    assert mine.wait(10) is not None
    assert alive(other.pid)
    assert alive(unmarked.pid)


def test_processes_are_found_by_the_whole_mark(started):
    process = start(started, SLEEP, "mark-long")

    assert find_marked("mark-long") == [process.pid]
    assert find_marked("mark") == []


def test_a_killed_attempt_is_cleaned_up_by_the_next_one(tmp_path, started):
    run_dir, temporary = tmp_path / "run", tmp_path / "ray"
    run_dir.mkdir()
    temporary.mkdir()
    left = start(started, SLEEP, "mark-of-the-killed")
    write_record(run_dir / "attempt.json", "mark-of-the-killed", temporary)

    with owned(run_dir) as owner:
        assert left.wait(10) is not None
        assert not temporary.exists()
        assert owner.mark != "mark-of-the-killed"


def test_folders_of_an_attempt_are_deleted_after_it(tmp_path):
    temporary = tmp_path / "ray"
    temporary.mkdir()

    def interrupted() -> None:
        with owned(tmp_path / "run") as owner:
            owner.remember_folder(temporary)
            assert json.loads(owner.record.read_text())["folders"] == [str(temporary)]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert not temporary.exists()


def test_shared_memory_that_nobody_uses_is_deleted_with_the_attempt(tmp_path: Path):
    # The process is killed before it deletes what it made.
    code = """
import os, signal
from multiprocessing import get_context, resource_tracker, shared_memory
resource_tracker.register = lambda name, kind: None
segment, lock = shared_memory.SharedMemory(create=True, size=8), get_context("spawn").Lock()
print(segment.name, "sem." + lock._semlock.name.strip("/"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with owned(tmp_path / "run"):
        names = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout
        left = [Path("/dev/shm", name) for name in names.split()]
        assert [path.exists() for path in left] == [True, True]

    assert [path.exists() for path in left] == [False, False]


def test_what_another_run_shares_with_a_process_that_it_starts_is_kept(tmp_path: Path, started):
    # The child opens segment and semaphore by name, once it has started.
    code = """
import sys
from multiprocessing import get_context, shared_memory
segment, lock = shared_memory.SharedMemory(create=True, size=8), get_context("spawn").Lock()
print("made", flush=True)
sys.stdin.read()
child = get_context("spawn").Process(target=str, args=(lock,))
child.start()
child.join(60)
segment.unlink()
sys.exit(child.exitcode)
"""
    with owned(tmp_path / "run"):
        other = start(started, code, "mark-of-another-run")
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"

    assert other.stdin is not None
    other.stdin.close()
    assert other.wait(60) == 0


@pytest.mark.parametrize("content", [None, "{half"])
def test_a_missing_or_incomplete_record_is_ignored(tmp_path, content):
    record = tmp_path / "attempt.json"
    if content is not None:
        record.write_text(content)

    clean_up_after(record)


def test_the_folder_of_a_running_attempt_is_refused(tmp_path: Path):
    with owned(tmp_path), pytest.raises(SettingsError, match="another process is training"), owned(tmp_path):
        pass
