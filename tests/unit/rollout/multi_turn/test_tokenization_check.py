"""The first difference between the text of a trajectory and its rendering by the chat template."""

import pytest

from turnmill.rollout.multi_turn.tokenization_check import Difference, find_difference


@pytest.mark.parametrize(
    ("template", "tokens", "compare_whitespace", "difference"),
    [
        (
            '<ast>{"name": "weigh", "weight": 3}', '<ast>{"name":"weigh","weight":3}', True,
            Difference('t>{"name": "weigh", ', 't>{"name":"weigh","w'),
        ),
        ('<ast>{"name": "weigh"}', '<ast>{"name":"weigh"}', False, None),
        ("It  is 3 lb of rye.", "It is 4 lb of rye.", False, Difference("It  is 3 lb of ry", "It is 4 lb of ry")),
        # One text ends where they differ.
        ("It is not 3 lb.", "It is not 3 lb. Done.", True, Difference(" not 3 lb.", " not 3 lb. Done.")),
        ("It is 3 lb. Done.", "It is 3 lb.", True, None),
    ],
    ids=["spaces", "spaces that do not count", "another letter", "the template ends", "the trajectory ends"],
)  # fmt: skip
def test_the_first_difference_is_quoted_with_ten_characters_on_both_sides(
    template: str, tokens: str, compare_whitespace: bool, difference: Difference | None
):
    assert find_difference(template, tokens, compare_whitespace=compare_whitespace) == difference
