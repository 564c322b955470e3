"""What a process holds, as /proc shows it."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnmill.sandboxes.measurements import count_locks

LOCKS = 3000
"""More than one read of /proc/locks returns."""

HOLDER = f"""
import fcntl, sys
file = open(sys.argv[1], "w")
for number in range({LOCKS}):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 7314159200000000 + 2 * number)
whole = open(sys.argv[1] + "-whole", "w")
fcntl.flock(whole, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""

COUNTER = r"""
import re
from turnmill.sandboxes.measurements import count_locks

count_locks({1})
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in maps.readlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if line.split()[1].startswith("rw"):
            memory.seek(start)
            found += len(re.findall(rb"73141592\d{8}", memory.read(end - start)))
print(found)
"""

# Its line has an arrow.
WAITER = """
import fcntl, sys
print("waits", flush=True)
fcntl.lockf(open(sys.argv[1], "w"), fcntl.LOCK_EX, 1, 7314159200000000)
"""


@pytest.fixture
def start(tmp_path: Path):
    started = []

    def run(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "file")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(10)


def test_locks_on_files_and_on_ranges_are_counted_for_their_processes(start):
    holder, other = start(HOLDER), start("import sys; print('has none', flush=True); sys.stdin.read()")

    assert count_locks({holder.pid}) == LOCKS + 1
    assert count_locks({other.pid}) == 0
    holder.kill()
    holder.wait(10)
    assert count_locks({holder.pid}) == 0


def test_a_process_that_waits_for_a_lock_is_counted(start):
    start(HOLDER)
    waiter = start(WAITER)

    while not (found := count_locks({waiter.pid})):
        assert waiter.poll() is None
    assert found == 1


def test_the_ranges_of_locks_are_not_kept(start):
    """Tasks choose ranges, and the next task's process is forked from the one that counts."""
    start(HOLDER)

    done = subprocess.run([sys.executable, "-c", COUNTER], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "0\n"
