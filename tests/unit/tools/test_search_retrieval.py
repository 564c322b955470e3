import pytest

from turnmill.core.errors import ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, make_tool


@pytest.mark.feature("verl-tool", "search")
@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("<search>a</search> <search> b </search>", "b"),
        ("<search>a</search><answer>b</answer>", "a"),
        ("<answer>a</answer><answer>b</answer>", "b"),
        ("<search>unclosed", None),
        ("text", None),
    ],
)
def test_the_last_query_is_taken_or_else_the_last_answer(action, parsed):
    assert make_tool("search_retrieval").parse(action) == parsed


@pytest.mark.feature("verl-tool", "search")
async def test_an_answer_ends_the_trajectory_and_is_not_a_valid_action():
    dialogue = Dialogue(make_tool("search_retrieval"))

    assert await dialogue.say("<answer>42</answer>") == ""
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


async def test_an_address_without_a_scheme_is_refused_at_the_start():
    with pytest.raises(ToolUnavailableError, match=r"RETRIEVER_URL \('retriever:8000'\) must be an address"):
        await make_tool("search_retrieval", RETRIEVER_URL="retriever:8000").start()
