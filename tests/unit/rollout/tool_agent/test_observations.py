import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.core.observations import truncate_observation
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.tool_agent.observations import ObservationTokenizer, placeholder_ids
from turnmill.testing.agent_loops import TOKENIZER

PICTURE = 99


@pytest.mark.feature("verl-tool", "observations that are too long")
@pytest.mark.parametrize(
    ("side", "head", "tail"), [("left", (), (3, 4, 5)), ("right", (1, 2, 3), ()), ("middle", (1,), (4, 5))]
)
def test_truncation_on_one_side_keeps_the_other(side, head, tail):
    cut = truncate_observation((1, 2, 3, 4, 5), 3, side)

    assert (cut.head, cut.tail, cut.is_whole) == (head, tail, False)


def test_an_observation_within_the_limit_is_not_truncated():
    cut = truncate_observation((1, 2, 3), 3, "middle")

    assert (cut.head, cut.is_whole) == ((1, 2, 3), True)


@pytest.mark.feature("verl-tool", "placeholders are not split")
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_a_picture_is_kept_whole_or_dropped(side):
    cut = truncate_observation((1, PICTURE, PICTURE, PICTURE, 2), 3, side, {PICTURE})

    assert [*cut.head, *cut.tail].count(PICTURE) in (0, 3)


@pytest.mark.feature("verl-tool", "placeholders are not split")
@given(
    st.lists(st.sampled_from([1, 2, PICTURE]), max_size=30),
    st.integers(1, 12),
    st.sampled_from(["left", "right", "middle"]),
)
def test_no_run_of_placeholders_is_ever_split(ids, limit, side):
    cut = truncate_observation(ids, limit, side, {PICTURE})

    assert len(cut.head) + len(cut.tail) <= max(limit, len(ids) if cut.is_whole else 0)
    if not cut.is_whole:
        end, start = len(cut.head), len(ids) - len(cut.tail)
        for edge in (end, start):
            if 0 < edge < len(ids):
                assert not ids[edge - 1] == ids[edge] == PICTURE


@pytest.mark.feature("verl-tool", "observations as turns of a chat")
@pytest.mark.parametrize("end", ["|", "!", "; "])
@pytest.mark.parametrize("response", ["look", "~", "see |", "see !", "see; ", ""])
def test_in_a_chat_the_turn_of_a_response_is_ended_once(response, end):
    agent = ToolAgent(enable_mtrl=True, mtrl_sep="(obs: {obs})", turn_end_token=end)
    ids = TOKENIZER.encode(response, add_special_tokens=False)

    observation = ObservationTokenizer(TOKENIZER, agent).tokenize("[2]", valid=True, response_ids=ids)

    assert TOKENIZER.decode([*ids, *observation.ids]) == f"{response.removesuffix(end)}{end}(obs: [2])"


def test_placeholder_ids_come_from_the_processor():
    class Processor:
        image_token_id = 7
        audio_token_id = None

    assert placeholder_ids(Processor()) == {7}
    assert placeholder_ids(None) == frozenset()
