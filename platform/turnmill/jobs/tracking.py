"""Who is told how the run goes."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word

Logger = Literal["console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "clearml", "trackio"]


class TrackingSettings(Settings):
    """Trackers that get every step's numbers, besides the run folder."""

    loggers: Annotated[tuple[Logger, ...], Field(strict=False, max_length=8)] = ()
    """verl's trackers, by name."""

    project: Word = "turnmill"
    """Project under which trackers file the run."""


class MetricsSettings(Settings):
    """Prometheus metrics of the run."""

    port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of `/metrics`; 0 takes any free one, left out there is none."""
