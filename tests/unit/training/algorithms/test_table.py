"""The table of algorithms: every class that it names exists."""

import pytest

from support.gradient_ranks import CRITICS, POLICIES
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.fine_tuning import Sft
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.algorithms import algorithm_class
from turnmill.training.algorithms.base import Algorithm
from turnmill.training.algorithms.table import ALGORITHMS
from turnmill.training.sft.trainer import SftTrainer

SETTINGS = {tag_of(section): section for section in sections_in(AlgorithmSettings)}

SFT = tag_of(Sft)
ACTING = {*ALGORITHMS} - {SFT}
"""Algorithms of agents that act; fine-tuning has a trainer of its own."""


@pytest.mark.parametrize(
    "algorithm_type", [tag_of(each) for each in sections_in(AlgorithmSettings) if tag_of(each) not in (PLUGIN, SFT)]
)
def test_the_class_of_every_type_can_be_imported(algorithm_type):
    assert issubclass(algorithm_class(algorithm_type), Algorithm)


def test_gradients_of_every_algorithm_are_compared_between_ranks_and_with_bfloat16():
    assert set(POLICIES) == ACTING
    assert set(CRITICS) == {name for name in ACTING if "critic_learning_rate" in SETTINGS[name].model_fields}


def test_fine_tuning_has_a_trainer_of_its_own():
    assert algorithm_class(SFT) is SftTrainer
