"""The table of algorithms: every class that it names exists."""

import pytest

from support.gradient_ranks import CRITICS, POLICIES
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.algorithms import algorithm_class
from turnmill.training.algorithms.base import Algorithm
from turnmill.training.algorithms.table import ALGORITHMS

SETTINGS = {tag_of(section): section for section in sections_in(AlgorithmSettings)}


@pytest.mark.parametrize(
    "algorithm_type", [tag_of(section) for section in sections_in(AlgorithmSettings) if tag_of(section) != PLUGIN]
)
def test_the_class_of_every_type_can_be_imported(algorithm_type):
    assert issubclass(algorithm_class(algorithm_type), Algorithm)


def test_gradients_of_every_algorithm_are_compared_between_ranks_and_with_bfloat16():
    assert set(POLICIES) == set(ALGORITHMS)
    assert set(CRITICS) == {name for name in ALGORITHMS if "critic_learning_rate" in SETTINGS[name].model_fields}
