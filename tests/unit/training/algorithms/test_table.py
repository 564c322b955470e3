"""The table of algorithms: every class that it names exists."""

import pytest

from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.algorithms import algorithm_class
from turnmill.training.algorithms.base import Algorithm


@pytest.mark.parametrize(
    "algorithm_type", [tag_of(section) for section in sections_in(AlgorithmSettings) if tag_of(section) != PLUGIN]
)
def test_the_class_of_every_type_can_be_imported(algorithm_type):
    assert issubclass(algorithm_class(algorithm_type), Algorithm)
