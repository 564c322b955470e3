"""A task scans its whole memory for the bytes of the task before it."""

import json
import secrets
from pathlib import Path

import pytest

from turnmill.core.errors import SandboxError
from turnmill.sandboxes.base import Limits, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox, ProcessSandbox

SANDBOXES = {
    "namespaces": lambda **options: ForkSandbox(spares=0, **options),
    "bare": lambda **options: ForkSandbox(spares=0, namespaces=False, **options),
    "process": lambda **options: ProcessSandbox(spares=0, **options),
}
UNNAMED_PLACES = ("source", "stdin", "environment", "output", "error")
"""Places whose bytes a supervisor does not read; after tasks with files, whose names it reads, it ends."""

PLACES = (*UNNAMED_PLACES, "file", "name")
LENGTH = 32
LIMITS = Limits(seconds=60, cpu_seconds=60)

SCAN = (Path(__file__).parent / "memory_scan.py").read_text()
HOLDER = """
import os, sys, time
print(os.path.dirname(os.getcwd()))
print({output!r}, flush=True)
print({error!r}, file=sys.stderr)
{source!r}
sys.stdin.read()
# The supervisor measures the disk while the task runs.
time.sleep(0.3)
"""

HOLDER_WITH_FILES = 'open({name!r}, "w").close()' + HOLDER

READ_ALL = """
import os
from turnmill.sandboxes import supervisor
from turnmill.sandboxes.task_monitor import TaskMonitor

kept = []

class ReadingMonitor(TaskMonitor):
    def report(self):
        report, files = super().report()
        kept.extend(os.pread(file, 1 << 20, 0) for file in (self.file, *files))
        kept.extend(os.listdir(self.workspace.home))
        self.holds_text = False
        return report, files

supervisor.TaskMonitor = ReadingMonitor
supervisor.workspaces.remove = lambda path, remove=supervisor.workspaces.remove: (remove(path), True)[1]
"""


async def secrets_found(sandbox: ForkSandbox, *, with_files: bool) -> tuple[set[str], bool]:
    """Run a task with secrets, then one that scans its memory.

    Return the places whose secrets it has found, and whether it had the same supervisor.
    """
    places = {secrets.token_hex(LENGTH // 2): place for place in PLACES}
    text = {place: f"SECRET:{secret} " * 5 for secret, place in places.items()}
    holder = SandboxTask(
        Python((HOLDER_WITH_FILES if with_files else HOLDER).format(**text)),
        stdin=text["stdin"].encode(),
        files={"note": text["file"].encode()} if with_files else {},
        environment={"NOTE": text["environment"]},
        limits=LIMITS,
    )
    try:
        held = await sandbox.run(holder)
        scan = await sandbox.run(SandboxTask(Python(SCAN), limits=LIMITS))
    except SandboxError as error:
        pytest.skip(str(error))
    finally:
        await sandbox.close()
    assert (held.exit_code, scan.exit_code) == (0, 0), (held, scan)
    seen = json.loads(scan.stdout)
    found = {places[secret] for secret in seen["found"] if secret in places}
    return found, seen["folder"] == held.stdout.decode().split()[0]


@pytest.mark.parametrize("with_files", [True, False])
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_a_task_has_no_byte_of_an_earlier_one_in_its_memory(kind, with_files):
    found, same_supervisor = await secrets_found(SANDBOXES[kind](), with_files=with_files)

    assert found == set()
    assert same_supervisor is not with_files


@pytest.mark.parametrize(("with_files", "places"), [(True, PLACES), (False, UNNAMED_PLACES)])
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_the_scan_finds_an_earlier_task_where_the_supervisor_has_read_it(
    kind, with_files, places, tmp_path, monkeypatch
):
    (tmp_path / "read_all.py").write_text(READ_ALL)
    monkeypatch.syspath_prepend(str(tmp_path))

    found, same_supervisor = await secrets_found(SANDBOXES[kind](preload=("read_all",)), with_files=with_files)

    assert found == set(places)
    assert same_supervisor
