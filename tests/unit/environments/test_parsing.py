import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.environments.parsing import backtrack_length, final_answer, has_marker, plan_length


@pytest.mark.feature("Verlog", "parsing of the action")
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("THINK: ACTION: drop is wrong\nACTION: Pick Up ", "Pick Up"),
        ("ACTION: drop action: toggle", "drop action: toggle"),
        ("action: drop\naction: toggle", "toggle"),
        ("Action go forward", "go forward"),
        ("Action: go forward", "go forward"),
        ("ACTION: go forward.", "go forward."),
        ("ACTION:", ""),
        ("  Toggle\n", "Toggle"),
    ],
)
def test_the_answer_is_the_text_after_the_last_marker(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "marked"), [("ACTION: a", True), ("action: a", True), ("Action a", True), ("a", False)]
)
def test_a_marker_has_three_spellings(text, marked):
    assert has_marker(text) is marked


@given(before=st.text(), answer=st.sampled_from(["turn left", "drop"]))
def test_text_before_the_last_marker_is_ignored(before, answer):
    assert final_answer(f"{before}ACTION: {answer}") == answer


def test_actions_are_counted_as_whole_words():
    assert plan_length("Turn left, turn left; then backdrop, DROP. turn leftish", ["turn left", "drop"]) == 3


def test_backtracking_words_are_counted():
    assert backtrack_length("However, wait: but I can’t. A butter knife, another, cannot.") == 6
