"""Tool servers as real processes, for integration tests and benchmarks."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from support.programs import end

START_SECONDS = 60.0
STOP_SECONDS = 12.0


class ServerProcess:
    """One `turnmill tool-server` and its log."""

    def __init__(self, log: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._log = log
        command = [sys.executable, "-m", "turnmill.cli.main", "tool-server"]
        command += ["--host", "127.0.0.1", "--port", "0", *arguments]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables | (environment or {})
            )
        self.http = httpx.Client(timeout=60)

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> "ServerProcess":
        """Wait until it accepts calls."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"Tool server ready url=(\S+)/get_observation", self.log)
            if found:
                self.http = httpx.Client(base_url=found[1], timeout=60)
                return self
            time.sleep(0.02)
        self.close()
        raise AssertionError(f"the server is not ready:\n{self.log}")

    @property
    def url(self) -> str:
        """The address that actions are sent to."""
        return str(self.http.base_url.join("/get_observation"))

    def post(self, trajectory_ids: list[str], actions: list[str], **fields: Any) -> httpx.Response:
        """Send actions."""
        body = {"trajectory_ids": trajectory_ids, "actions": actions, **fields}
        return self.http.post("/get_observation", json=body)

    def observe(self, action: str, trajectory_id: str = "t", **extra: Any) -> Any:
        """Send one action and return its observation."""
        response = self.post([trajectory_id], [action], extra_fields=[extra])
        assert response.status_code == 200, response.text
        return response.json()["observations"][0]

    def metric(self, name: str) -> float:
        """Return the value of a series, named as in Prometheus text."""
        lines = self.http.get("/metrics").text.splitlines()
        return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name} ")))

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; return the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def children(self) -> list[int]:
        """Return all descendants of the server's process."""
        return descendants(self.process.pid)

    def close(self) -> None:
        """Stop the process if it still runs."""
        self.http.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        end(self.process, STOP_SECONDS)


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Return True if a process runs; zombies do not count."""
    with suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def kill_now(pids: Iterable[int]) -> None:
    """Kill processes; processes that have ended are ignored."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def eventually(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)
    return found


NewServer = Callable[..., ServerProcess]
