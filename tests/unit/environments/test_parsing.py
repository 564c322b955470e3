import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.environments.parsing import backtrack_length, before_answer, final_answer, has_marker, plan_length


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


@pytest.mark.feature("Verlog", "metrics of behaviour")
def test_phrases_for_actions_are_counted_wherever_they_stand_as_in_verlog():
    assert plan_length("Turn left, turn left; then backdrop, DROP. turn leftish", ["turn left", "drop"]) == 5


@pytest.mark.feature("Verlog", "metrics of behaviour")
def test_backtracking_words_are_counted_also_within_other_words_as_in_verlog():
    # however, wait, but, but(ter), another, cannot; not the typographic can’t.
    assert backtrack_length("However, wait: but I can’t. A butter knife, another, cannot.") == 6


@pytest.mark.parametrize(
    ("text", "before"), [("THINK: a\nACTION: b ACTION: c", "THINK: a"), ("no Action b", "no"), ("b", "b")]
)
def test_the_text_before_the_first_marker_is_the_thought(text, before):
    assert before_answer(text) == before
