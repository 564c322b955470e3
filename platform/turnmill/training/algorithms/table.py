"""Algorithms by the type of their settings; the table is `turnmill.jobs.algorithm`."""

from typing import Any

from turnmill.core.lookup import import_object
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.trajectory_algorithms import TrajectoryAlgorithmSettings
from turnmill.training.algorithms.base import Algorithm, TrajectoryAlgorithm
from turnmill.training.plugins import implementations, plugin_class

ALGORITHMS = implementations(AlgorithmSettings)


def algorithm_class(algorithm_type: str) -> type[Algorithm[Any]]:
    """Return the class for `algorithm.type` of a job, from the table or by its path `package.module:Class`.

    Raises PluginError if a class from outside this package cannot be imported, or is no subclass of
    TrajectoryAlgorithm.
    """
    if algorithm_type not in ALGORITHMS:
        return plugin_class("algorithm", algorithm_type, TrajectoryAlgorithm)
    algorithm: type[Algorithm[Any]] = import_object(ALGORITHMS[algorithm_type])
    return algorithm


def algorithm_of(settings: AlgorithmSettings) -> Algorithm[Any]:
    """Return the algorithm with its settings."""
    return algorithm_class(settings.type)(settings)


def trajectory_algorithm_of(settings: TrajectoryAlgorithmSettings) -> TrajectoryAlgorithm[Any]:
    """Return the algorithm of a job that learns from whole trajectories."""
    algorithm = algorithm_class(settings.type)(settings)
    assert isinstance(algorithm, TrajectoryAlgorithm)
    return algorithm
