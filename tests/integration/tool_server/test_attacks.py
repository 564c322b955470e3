"""Attacks by the actions of a trajectory, over HTTP; each also runs bare, where it works."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.server_process import ServerProcess

SETTINGS = {
    "PYTHON_BLOCKED_WORDS": "off",
    "PYTHON_TIMEOUT_SECONDS": "20",
    "PYTHON_MEMORY_MIB": "256",
}
CHILDREN = """
import ctypes, mmap, os, signal, sys, threading, time
def hold(number, work):
    pids = []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            try: kept = work(); time.sleep(1); os._exit(0)
            except BaseException: os._exit(1)
        pids.append(pid)
    print("held" if all([os.waitpid(pid, 0)[1] == 0 for pid in pids]) else "refused")
"""
LIMITS = {
    "private memory": "hold(6, lambda: bytearray(b'x') * (60 << 20))",
    "shared memory": "def work(): m = mmap.mmap(-1, 100 << 20); m.write(b'x' * len(m)); return m\nhold(4, work)",
    "memory in files": "def work(): f = os.memfd_create('x'); os.write(f, bytes(100 << 20)); return f\nhold(4, work)",
    "memory in pipes": """
x = bytearray(b"x") * (225 << 20)
def work():
    kept = []
    for _ in range(110): r, w = os.pipe(); os.write(w, bytes(65536)); kept.append((r, w))
    return kept
hold(8, work)
""",
    "deleted files": """
kept = []
for n in range(100):
    f = open("f", "wb"); os.unlink("f"); f.write(bytes(1 << 20)); f.flush(); kept.append(f)
hold(1, lambda: None)
""",
    "many files": "for n in range(25000): os.close(os.open(f'{n}', os.O_CREAT))\nhold(1, lambda: None)",
    "processes": "hold(100, lambda: None)",
    "threads": """
for _ in range(200): threading.Thread(target=time.sleep, args=(1.2,)).start()
time.sleep(1); print("held", flush=True)
""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    log = tmp_path_factory.mktemp("attacks") / "server.log"
    server = ServerProcess(log, "--tool_type", "python_code", *settings)
    yield server.wait_until_ready()
    server.close()


def text(observation: Any) -> str:
    return str(observation["obs"] if isinstance(observation, dict) else observation)


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_over_http_cannot_hold_more_than_its_limits(server: ServerProcess, tmp_path: Path, name: str):
    program = CHILDREN + LIMITS[name]
    bare = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    answer = server.observe(f"<python>{program}</python>", f"limits of {name}")

    assert "held" in bare.stdout, bare.stderr
    assert "held" not in text(answer)
    assert "42" in text(server.observe("<python>print(6 * 7)</python>"))
