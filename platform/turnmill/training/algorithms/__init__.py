"""The algorithms: how each learns from a step's rows, one module for each."""

from turnmill.training.algorithms.table import ALGORITHMS, algorithm_class, algorithm_of, trajectory_algorithm_of

__all__ = ["ALGORITHMS", "algorithm_class", "algorithm_of", "trajectory_algorithm_of"]
