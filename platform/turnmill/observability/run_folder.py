"""The folder of a run: what it is made of, and how several processes write it and read it at once."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnmill.core.errors import RunFailedError
from turnmill.observability import atomic_files, json_lines

BEAT_INTERVAL_SECONDS = 0.1
# Several rows of metrics.
LAST_STEP_BYTES = 128 * 1024
# Where attempts are counted, the folder is that of the newest one, and a link to it has the name without.
ATTEMPT_SUFFIX = re.compile(r"\.attempt-\d+$")


class RunFolder:
    """Everything that one run leaves behind, at one path."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._last_beat = -BEAT_INTERVAL_SECONDS

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def job(self) -> Path:
        """The job as resolved."""
        return self.path / "job.yaml"

    @property
    def metrics(self) -> Path:
        """One object per step."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What came out, written at the end."""
        return self.path / "summary.json"

    @property
    def curve(self) -> Path:
        """The picture of the run so far."""
        return self.path / "curve.png"

    @property
    def progress(self) -> Path:
        """How far the run is, rewritten all the time."""
        return self.path / "progress.json"

    @property
    def heartbeat(self) -> Path:
        """An empty file; the time of its last change is the time of the last progress."""
        return self.path / "heartbeat"

    @property
    def failure(self) -> Path:
        """Why this attempt cannot go on, written by the process that found out."""
        return self.path / "failure.json"

    @property
    def marks(self) -> Path:
        """When the run started, reached its first step and ended, attempt by attempt."""
        return self.path / "logs" / "marks.jsonl"

    @property
    def trajectories(self) -> Path:
        """Every turn, by step."""
        return self.path / "trajectories"

    @property
    def vocabulary(self) -> Path:
        """The text of every token."""
        return self.path / "vocabulary.json"

    @property
    def checkpoints(self) -> Path:
        """What a run can be resumed from."""
        return self.path / "checkpoints"

    @property
    def episodes(self) -> Path:
        """Moving pictures of single episodes."""
        return self.path / "episodes"

    @property
    def logs(self) -> Path:
        """One file of events per process."""
        return self.path / "logs"

    def create(self) -> None:
        """Make the folder, or make it ready to go on; before any other process of the run writes to it."""
        for folder in (self.path, self.trajectories, self.checkpoints, self.episodes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_files.sweep(folder)
        self.failure.unlink(missing_ok=True)
        previous = self.last_beat()
        self._touch()
        json_lines.append(self.marks, [{"event": "started", "time": time.time(), "previous_beat": previous}])

    def mark(self, event: str) -> None:
        """Note the time of an event that happens once per attempt: `first_step` or `ended`."""
        json_lines.append(self.marks, [{"event": event, "time": time.time()}])

    def read_marks(self) -> list[dict[str, Any]]:
        """The events noted so far, in order."""
        return list(json_lines.read(self.marks, "event"))

    def write_job(self, text: str) -> None:
        """Replace `job.yaml`."""
        atomic_files.write_text(self.job, text)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json`."""
        atomic_files.write_text(self.summary, json.dumps(summary, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """What `summary.json` holds; empty while the run has none."""
        try:
            return dict(json.loads(self.summary.read_text()))
        except FileNotFoundError:
            return {}

    def write_failure(self, error: RunFailedError) -> None:
        """Have the attempt end: whoever watches it reads why. The first reason stays."""
        if not self.failure.exists():
            atomic_files.write_text(self.failure, json.dumps({"message": str(error), "cause": error.cause}))

    def read_failure(self) -> RunFailedError | None:
        """Why this attempt is to end; None while nothing speaks against it."""
        try:
            return RunFailedError(**json.loads(self.failure.read_text()))
        except FileNotFoundError:
            return None

    def run_name(self) -> str:
        """What the run's trajectories lie under in a store: the same in every attempt, and in no other run."""
        path = Path(ATTEMPT_SUFFIX.sub("", str(self.path.absolute())))
        return f"{path.name}-{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"

    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of one step."""
        json_lines.append(self.metrics, [{"step": step, "time": time.time(), **metrics}])

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The metrics of every step so far, each with its `step` and the `time` it was written."""
        return json_lines.read(self.metrics, "step")

    def last_step(self) -> dict[str, Any]:
        """The metrics of the last finished step, with its `step`; empty before the first."""
        rows = json_lines.read_tail(self.metrics, "step", max_bytes=LAST_STEP_BYTES)
        finished = [row for row in rows if "timing_s/step" in row]
        return finished[-1] if finished else {}

    def truncate_after(self, step: int) -> None:
        """Forget the metrics of later steps, and a torn last line, before a run goes on from a checkpoint."""
        if self.metrics.exists():
            kept = (json_lines.encode(row) for row in self.read_metrics() if row["step"] <= step)
            atomic_files.write_bytes(self.metrics, b"".join(kept))

    def beat(self) -> None:
        """Show that something progressed; cheap enough to call at every turn."""
        now = time.monotonic()
        if now - self._last_beat >= BEAT_INTERVAL_SECONDS:
            self._last_beat = now
            self._touch()

    def seconds_since_progress(self) -> float:
        """Seconds since any process of the run beat last, or since its attempt started."""
        beat = self.last_beat()
        return 0.0 if beat is None else max(0.0, time.time() - beat)

    def last_beat(self) -> float | None:
        """When any process of the run beat last, in seconds since 1970; None before the first time."""
        try:
            return self.heartbeat.stat().st_mtime
        except FileNotFoundError:
            return None

    def _touch(self) -> None:
        try:
            os.utime(self.heartbeat)
        except FileNotFoundError:
            self.heartbeat.touch()
