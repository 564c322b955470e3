"""Algorithms, one module each: advantages, penalties, metrics and verl settings of a type of algorithm."""

from turnmill.training.algorithms.table import ALGORITHMS, algorithm_class, algorithm_of, trajectory_algorithm_of

__all__ = ["ALGORITHMS", "algorithm_class", "algorithm_of", "trajectory_algorithm_of"]
