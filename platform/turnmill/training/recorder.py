"""Records a run during training: run folder, progress, Prometheus and trackers."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import atomic_files
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.prometheus import RunInfo, RunMetrics
from turnmill.observability.run_folder import RunFolder, Silence
from turnmill.observability.step_time import split_step_time
from turnmill.training.verl.types import Tracking

ATTEMPT = "TURNMILL_ATTEMPT"
"""Environment variable with the number of the attempt."""


class RunRecorder:
    """Recorder of one attempt, in the trainer's process."""

    def __init__(self, job: AgentTrainingJob, run_dir: Path, *, device: str = "cpu") -> None:
        self.job = job
        self.folder = RunFolder(run_dir)
        self.steps = job.spec.training.steps
        info = run_info(job, device)
        self.prometheus = RunMetrics(
            info,
            labels={"training_job": job.metadata.name, "attempt": str(info.attempt)},
            seconds_since_progress=self.folder.seconds_since_progress,
            allowed_silence=lambda: allowed.seconds if (allowed := self.folder.allowed_silence()) else None,
        )
        if job.spec.metrics.port is not None:
            self._serve_metrics(job.spec.metrics.port)
        self._total = 0
        self._last: dict[str, float] = {}
        self._steps_taken = 0
        self._turns = 0.0
        self._started = time.monotonic()

    def _serve_metrics(self, port: int) -> None:
        try:
            taken = self.prometheus.serve(port, all_interfaces=True)
        except OSError as error:
            raise SettingsError(f"spec.{error.strerror}") from error
        atomic_files.write_text(self.folder.path / "metrics_url", f"http://127.0.0.1:{taken}/metrics\n")

    def beat(self) -> None:
        """Write the heartbeat, which tells a slow run from a stalled one."""
        self.folder.beat()

    @contextmanager
    def phase(self, name: str, total: int = 0) -> Iterator[None]:
        """Record a phase of the run that is not a step, such as a validation."""
        self.advance(name, 0, {}, total=total)
        yield
        self.beat()

    @contextmanager
    def allowing(self, seconds: float, setting: str) -> Iterator[None]:
        """Let the run be silent for as long in the context; `setting` is the field that says so, below `spec`."""
        self.folder.allow_silence(Silence(seconds, setting))
        yield
        self.folder.allow_silence(None)

    def advance(self, phase: str, done: int, metrics: Mapping[str, object], *, total: int | None = None) -> None:
        """Write the progress of a phase: `done` of `total`."""
        if total is not None:
            self._total = total
        self.beat()
        write_progress(self.folder, Progress(phase=phase, done=done, total=self._total))

    def resume_after(self, step: int) -> None:
        """Write the progress of an attempt that resumes the run after this step, which may be the last."""
        write_progress(self.folder, self._step_progress(step))
        self.beat()

    def begin_step(self, step: int) -> None:
        """Record the start of a step."""
        if self._steps_taken == 0:
            self.folder.mark("first_step")
            self._started = time.monotonic()
            self._total = self.steps
            write_progress(self.folder, self._step_progress(step - 1))
        self.beat()

    def log_step(self, step: int, metrics: Mapping[str, object]) -> None:
        """Write the metrics of a finished step, and export them to Prometheus."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
        numbers["turnmill/policy_version"] = float(step)
        numbers |= {f"turnmill/step_parts/{part}": seconds for part, seconds in split_step_time(numbers).items()}
        self._last |= numbers
        self._steps_taken += 1
        self._turns += numbers.get("turnmill/turns", 0.0)
        self.folder.append_metrics(step, numbers)
        self.prometheus.observe_step(numbers)
        self.beat()
        write_progress(self.folder, self._step_progress(step))

    def log_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a validation outside a step, such as the first one."""
        self._last |= metrics
        self.folder.append_metrics(step, metrics)
        self.prometheus.observe_step(metrics)

    def checkpoint_written(self) -> None:
        """Record that a checkpoint is complete."""
        self.prometheus.observe_checkpoint()
        self.beat()

    def _step_progress(self, step: int) -> Progress:
        elapsed = time.monotonic() - self._started
        turns = self._turns
        per_step = elapsed / self._steps_taken if self._steps_taken else None
        loss = self._last.get("train/loss")
        return Progress(
            phase="training",
            done=step,
            total=self.steps,
            success=self._last.get("turnmill/success"),
            reward=self._last.get("turnmill/reward_mean"),
            turns_per_second=turns / elapsed if turns and elapsed else None,
            seconds_left=per_step * (self.steps - step) if per_step else None,
            message=None if loss is None else f"loss {loss:.3f}",
        )


def run_info(job: AgentTrainingJob, device: str) -> RunInfo:
    """Return the labels and limits of an attempt, from its job and its environment variables."""
    train, rollout = job.spec.resources.train, job.spec.resources.rollout
    counts = {("train", train.accelerator or "any"): train.nodes * train.gpus_per_node}
    if job.spec.training.mode == "separate_async":
        counts["rollout", rollout.accelerator or "any"] = rollout.replicas
    if (reward := job.spec.reward_model) is not None:
        counts["reward", reward.accelerator or "any"] = reward.replicas * reward.tensor_parallel
    return RunInfo(
        environment=job.spec.environment_name,
        attempt=int(os.environ.get(ATTEMPT, "1")),
        steps=job.spec.training.steps,
        checkpoint_every=job.spec.training.checkpoint_every,
        max_failed_ratio=job.spec.training.max_failed_ratio,
        stall_timeout_seconds=job.spec.training.stall_timeout_seconds,
        # Without GPUs, the number counts processes.
        gpus={key: count if device == "cuda" else 0 for key, count in counts.items()},
    )


class StepLogger:
    """Replaces verl's trackers: writes metrics to the run folder, calls `after_step`, then passes them on."""

    def __init__(self, tracking: Tracking, recorder: RunRecorder, after_step: Callable[[], None]) -> None:
        self._tracking = tracking
        self._recorder = recorder
        self._after_step = after_step

    def log(self, data: Mapping[str, object], step: int, **kwargs: object) -> None:
        """Write the metrics of a step and pass them on."""
        self._recorder.log_step(step, data)
        self._after_step()
        self._tracking.log(data=data, step=step, **kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tracking, name)
