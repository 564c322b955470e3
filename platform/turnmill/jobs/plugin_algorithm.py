"""An algorithm from outside this package."""

from typing import Any

from pydantic import Field

from turnmill.jobs.settings import PluginPath
from turnmill.jobs.trajectory_algorithms import KlSettings, TrajectoryAlgorithmSettings


class PluginAlgorithm(TrajectoryAlgorithmSettings):
    """An algorithm of your own: `type` names its class, and `options` has the settings beyond these fields."""

    type: PluginPath
    """Algorithm of your own, as `package.module:Class`; it must be importable where the job runs."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the class, which the class validates."""
