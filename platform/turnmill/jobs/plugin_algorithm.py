"""An algorithm from outside this package."""

from typing import Any

from pydantic import Field

from turnmill.jobs.settings import PluginPath
from turnmill.jobs.trajectory_algorithms import KlSettings, TrajectoryAlgorithmSettings


class PluginAlgorithm(TrajectoryAlgorithmSettings):
    """An algorithm of your own: `type` names its class, and what it has beyond these fields goes into `options`."""

    type: PluginPath
    """Algorithm of your own, as `package.module:Class`; what runs the job must be able to import it."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the class's own, which the class checks."""
