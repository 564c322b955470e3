"""The tools that come with agents of the type `multi_turn`."""

import pytest

from turnmill.rollout.multi_turn.example_tools.calculator import calculator


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("42*17", "714"), ("7 - 12", "-5"), ("-3+-4", "-7"), ("3--4", "7"), ("6/2", "no sum"), ("1+2+3", "no sum"),
        ("1234567890+1", "no sum"),
    ],
)  # fmt: skip
def test_the_calculator_answers_one_sum_of_two_whole_numbers(expression: str, answer: str):
    assert calculator(expression) == answer
