"""Settings of trackers and Prometheus metrics."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word

Logger = Literal["console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "clearml", "trackio"]


class TrackingSettings(Settings):
    """Trackers that receive the metrics of every step, in addition to the run folder."""

    loggers: Annotated[tuple[Logger, ...], Field(strict=False, max_length=8)] = ()
    """verl's trackers, by name."""

    project: Word = "turnmill"
    """Name of the project in trackers."""


class MetricsSettings(Settings):
    """Prometheus metrics of the run."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of `/metrics`; 0 takes any free port. Left out, metrics are not served."""
