import pytest

from turnmill.environment_server.session import as_response
from turnmill.environments.parsing import final_answer


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("go forward", "go forward"),
        (" go forward\n", "go forward"),
        (":", ":"),
        (": go", ": go"),
        ("the Action is needed", "the Action is needed"),
        ("action: go", "action: go"),
        ("I see a wall. ACTION: turn left", "turn left"),
        ("", ""),
    ],
)
def test_a_text_is_the_action_itself_unless_it_has_the_marker(action: str, meant: str):
    assert final_answer(as_response(action)) == meant
