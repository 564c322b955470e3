"""Runs jobs as a user does, and watches what they take."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path("manifests/examples/babyai-goto-cpu.yaml")
SAMPLE_SECONDS = 3.0


@dataclass(frozen=True)
class Measured:
    """One run of the command line."""

    exit_code: int
    seconds: float
    peak_bytes: int
    summary: dict[str, Any]


def turnmill(job: Path, run_dir: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a run; its output goes to RUN_DIR.out."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "turnmill.cli.main", "run", str(job), "--output", str(run_dir), *arguments]
    with Path(f"{run_dir}.out").open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )


def measure(job: Path, run_dir: Path, *arguments: str) -> Measured:
    """Run a job to its end."""
    started = time.monotonic()
    process = turnmill(job, run_dir, *arguments)
    memory = MemoryWatch(process.pid, run_dir)
    code = process.wait()
    seconds = time.monotonic() - started
    summary = run_dir / "summary.json"
    return Measured(code, seconds, memory.stop(), json.loads(summary.read_text()) if summary.exists() else {})


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Kill the process that was started, and nothing else: what it leaves behind is the next attempt's to clear."""
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()


class MemoryWatch:
    """The largest memory of all processes of a run together; pages that they share count once (PSS)."""

    def __init__(self, pid: int, run_dir: Path) -> None:
        self._pid, self._record = pid, run_dir / "attempt.json"
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End the watch; the peak in bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                mark = json.loads(self._record.read_text())["mark"]
            except (OSError, ValueError):
                continue
            self._peak = max(self._peak, sum(_pss(entry) for entry in self._processes(f"TURNMILL_ATTEMPT={mark}")))

    def _processes(self, mark: str) -> list[Path]:
        found = [Path(f"/proc/{self._pid}")]
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(entry)
            except OSError:
                continue
        return found


def _pss(entry: Path) -> int:
    try:
        lines = (entry / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
