"""Runs jobs as a user does, and watches what they take."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.testing.whole_runs import WholeRun

EXAMPLE = Path("manifests/examples/babyai-goto-cpu.yaml")
SAMPLE_SECONDS = 3.0


@dataclass(frozen=True)
class Measured:
    """One run of the command line."""

    exit_code: int
    seconds: float
    peak_bytes: int
    summary: dict[str, Any]


def measure(job: Path, run_dir: Path, *arguments: str) -> Measured:
    """Run a job to its end."""
    started = time.monotonic()
    with WholeRun(job, run_dir) as run:
        process = run.start(*arguments).process
        memory = MemoryWatch(process.pid, run)
        code = process.wait()
    seconds = time.monotonic() - started
    summary = run_dir / "summary.json"
    return Measured(code, seconds, memory.stop(), json.loads(summary.read_text()) if summary.exists() else {})


class MemoryWatch:
    """The largest memory of all processes of a run together; pages that they share count once (PSS)."""

    def __init__(self, pid: int, run: WholeRun) -> None:
        self._pid, self._run = pid, run
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
            self._peak = max(self._peak, sum(map(_pss, [self._pid, *self._run.processes()])))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
