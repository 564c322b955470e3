"""The run folder and its files, which several processes read and write at the same time."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.core.errors import RunFailedError
from turnmill.observability import atomic_files, json_lines

BEAT_INTERVAL_SECONDS = 0.1
# Enough for several rows of metrics.
LAST_STEP_BYTES = 128 * 1024
PROBE_BYTES = 8192
VARIABLE = "TURNMILL_RUN_FOLDER"
"""Environment variable with the run folder, in all processes of Ray."""

# Under an operator each attempt has a folder of its own, and a link without the suffix leads to the latest.
ATTEMPT_SUFFIX = re.compile(r"\.attempt-\d+$")


MetricsRow = dict[str, Any]
"""Metrics of one step by name; None or a missing key if not measured."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time without heartbeats that is no failure."""

    seconds: float

    setting: str
    """Field of the job that sets it, below `spec`."""


class RunFolder:
    """The files of one run, below one path."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._last_beat = -BEAT_INTERVAL_SECONDS

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def of_process(cls) -> "RunFolder | None":
        """Return the folder of the run that this process belongs to; None outside of a run."""
        path = os.environ.get(VARIABLE)
        return cls(path) if path else None

    @property
    def job(self) -> Path:
        """The resolved job."""
        return self.path / "job.yaml"

    @property
    def metrics(self) -> Path:
        """Metrics: one JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Summary of the results, written at the end."""
        return self.path / "summary.json"

    @property
    def curve(self) -> Path:
        """Learning curve of the run so far."""
        return self.path / "curve.png"

    @property
    def progress(self) -> Path:
        """Progress of the run, rewritten continuously."""
        return self.path / "progress.json"

    @property
    def heartbeat(self) -> Path:
        """File whose modification time is the time of the last progress; see `allow_silence` for its content."""
        return self.path / "heartbeat"

    @property
    def failure(self) -> Path:
        """Reason why this attempt must end, written by the process that found it."""
        return self.path / "failure.json"

    @property
    def reward_model(self) -> Path:
        """Addresses and key of the servers of `spec.rewardModel`."""
        return self.path / "reward-model.json"

    @property
    def marks(self) -> Path:
        """Times at which each attempt started, reached its first step and ended."""
        return self.path / "logs" / "marks.jsonl"

    @property
    def trajectories(self) -> Path:
        """Log of trajectories, one file per step."""
        return self.path / "trajectories"

    @property
    def vocabulary(self) -> Path:
        """Text of every token."""
        return self.path / "vocabulary.json"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints."""
        return self.path / "checkpoints"

    @property
    def episodes(self) -> Path:
        """Images and animated GIFs of single episodes."""
        return self.path / "episodes"

    @property
    def logs(self) -> Path:
        """Logs, one file per process."""
        return self.path / "logs"

    def create(self) -> None:
        """Create the folder, or prepare it for a resumed run, before other processes of the run write to it."""
        for folder in (self.path, self.trajectories, self.checkpoints, self.episodes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_files.remove_partial_files(folder)
        self.failure.unlink(missing_ok=True)
        previous = self.last_beat()
        self._touch()
        json_lines.append(self.marks, [{"event": "started", "time": time.time(), "previous_beat": previous}])

    def mark(self, event: str, *, patience: float = 0.0) -> None:
        """Record the time of an event that happens once per attempt: `first_step` or `ended`."""
        json_lines.append(self.marks, [{"event": event, "time": time.time()}], patience=patience)

    def read_marks(self) -> list[dict[str, Any]]:
        """Return the recorded events, in order."""
        return list(json_lines.read(self.marks, "event"))

    def write_job(self, text: str) -> None:
        """Replace `job.yaml`."""
        atomic_files.write_text(self.job, text)

    def write_summary(self, summary: Mapping[str, object], *, patience: float = 0.0) -> None:
        """Replace `summary.json`."""
        atomic_files.write_text(self.summary, json.dumps(summary, indent=2) + "\n", patience=patience)

    def read_summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`; empty while there is none."""
        try:
            return dict(json.loads(self.summary.read_text()))
        except FileNotFoundError:
            return {}

    def write_failure(self, error: RunFailedError) -> None:
        """Request the end of the attempt, with the reason; the first reason is kept."""
        if not self.failure.exists():
            atomic_files.write_text(self.failure, json.dumps({"message": str(error), "cause": error.cause}))

    def read_failure(self) -> RunFailedError | None:
        """Return the reason why this attempt must end; None if it may go on."""
        try:
            return RunFailedError(**json.loads(self.failure.read_text()))
        except FileNotFoundError:
            return None

    def write_problem(self) -> str | None:
        """Return why nothing can be written to the folder; None if something can."""
        try:
            atomic_files.write_text(self.path / "probe", "x" * PROBE_BYTES)
            (self.path / "probe").unlink()
        except OSError as error:
            return error.strerror or str(error)
        return None

    def run_name(self) -> str:
        """Return the run's name in a trajectory store: the same for every attempt, and unique to the run."""
        path = Path(ATTEMPT_SUFFIX.sub("", str(self.path.absolute())))
        return f"{path.name}-{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"

    def append_metrics(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append the metrics of one step; on a full disk, wait for room."""
        row = {"step": step, "time": time.time(), **metrics}
        json_lines.append(self.metrics, [row], patience=atomic_files.PATIENCE)

    def read_metrics(self) -> Iterator[MetricsRow]:
        """Yield the metrics of every step so far, each with its `step` and the `time` of writing."""
        return json_lines.read(self.metrics, "step")

    def last_step(self) -> MetricsRow:
        """Return the metrics of the last finished step, with its `step`; empty before the first."""
        rows = json_lines.read_tail(self.metrics, "step", max_bytes=LAST_STEP_BYTES)
        finished = [row for row in rows if "timing_s/step" in row]
        return finished[-1] if finished else {}

    def truncate_after(self, step: int) -> None:
        """Delete the metrics of later steps and an incomplete last line, before a run resumes from a checkpoint."""
        if self.metrics.exists():
            kept = (json_lines.encode(row) for row in self.read_metrics() if row["step"] <= step)
            atomic_files.write_bytes(self.metrics, b"".join(kept))

    def beat(self, *, every: float = BEAT_INTERVAL_SECONDS) -> None:
        """Update the heartbeat, unless `every` seconds have not passed since: cheap enough to call at every turn."""
        now = time.monotonic()
        if now - self._last_beat >= every:
            self._last_beat = now
            self._touch()

    def allow_silence(self, allowed: "Silence | None") -> None:
        """Set how long the next heartbeat may take, until further notice; None for the job's limit. Beats, too."""
        content = "" if allowed is None else f"{allowed.seconds:g} {allowed.setting}\n"
        atomic_files.write_text(self.heartbeat, content, durable=False, patience=atomic_files.PATIENCE)

    def allowed_silence(self) -> "Silence | None":
        """Return how long the next heartbeat may take; None if that is the job's limit."""
        try:
            seconds, setting = self.heartbeat.read_text().split()
            return Silence(float(seconds), setting)
        except (OSError, ValueError):
            return None

    def seconds_since_progress(self) -> float:
        """Return the seconds since the last heartbeat, or since the attempt started."""
        beat = self.last_beat()
        return 0.0 if beat is None else max(0.0, time.time() - beat)

    def last_beat(self) -> float | None:
        """Return the time of the last heartbeat, in seconds since 1970; None before the first."""
        try:
            return self.heartbeat.stat().st_mtime
        except FileNotFoundError:
            return None

    def _touch(self) -> None:
        try:
            os.utime(self.heartbeat)
        except FileNotFoundError:
            self.heartbeat.touch()
