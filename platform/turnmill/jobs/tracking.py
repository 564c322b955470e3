"""Settings of trackers, records of trajectories and Prometheus metrics."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word

Logger = Literal["console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "clearml", "trackio"]


class TrackingSettings(Settings):
    """Trackers that receive the metrics of every step, in addition to the run folder, and what the run folder keeps."""

    loggers: Annotated[tuple[Logger, ...], Field(strict=False, max_length=8)] = ()
    """verl's trackers, by name."""

    project: Word = "turnmill"
    """Name of the project in trackers."""

    trajectories: Literal["all", "sample"] = "all"
    """Trajectories whose turns are recorded: all, or a sample by task. Failed ones and validations always are."""

    sample_share: float = Field(default=0.05, gt=0, le=1)
    """Share of a step's tasks whose trajectories are recorded with `sample`: all trajectories of a task, or none."""

    keep_steps: int | None = Field(default=None, ge=1)
    """Last steps whose trajectories stay recorded; earlier ones are deleted, except validations. Left out, all stay."""

    @property
    def recorded_share(self) -> float:
        """Share of a step's tasks whose trajectories are recorded."""
        return 1.0 if self.trajectories == "all" else self.sample_share


class MetricsSettings(Settings):
    """Prometheus metrics of the run."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of `/metrics`; 0 takes any free port. Left out, metrics are not served."""
