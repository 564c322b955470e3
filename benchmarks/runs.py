"""Runs jobs as a user does, and watches what they take."""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.training_runs import TrainingRun

EXAMPLE = Path("manifests/examples/babyai-goto-cpu.yaml")
SAMPLE_SECONDS = 3.0


@dataclass(frozen=True)
class Measured:
    """One run of the command line."""

    exit_code: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    summary: dict[str, Any]


def measure(job: Path, run_dir: Path, *arguments: str) -> Measured:
    """Run a job to its end."""
    started = time.monotonic()
    with TrainingRun(job, run_dir) as run:
        process = run.start(*arguments).process
        watch = Watch(process.pid, run)
        code = process.wait()
    seconds = time.monotonic() - started
    watch.stop()
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    return Measured(code, seconds, watch.cpu_seconds, watch.peak_bytes, summary)


class Watch:
    """Samples CPU time and memory of all processes of a run; shared pages count once (PSS).

    Of a process's end, up to `SAMPLE_SECONDS` of its time are not seen.
    """

    def __init__(self, pid: int, run: TrainingRun) -> None:
        self._pid, self._run = pid, run
        self.peak_bytes = 0
        self._cpu_seconds: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._ended.set()
        self._thread.join()

    @property
    def cpu_seconds(self) -> float:
        """Of the program and of the system."""
        return sum(self._cpu_seconds.values())

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            processes = [self._pid, *self._run.processes()]
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, processes)))
            for pid in processes:
                self._cpu_seconds[pid] = max(self._cpu_seconds.get(pid, 0.0), _cpu_seconds(pid))


def _cpu_seconds(pid: int) -> float:
    try:
        # After the name, which may hold anything: the 14th and the 15th field of all.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
