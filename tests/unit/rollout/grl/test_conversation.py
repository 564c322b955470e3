import pytest

from turnmill.rollout.grl.conversation import Conversation
from turnmill.rollout.tokens import Tokens


@pytest.mark.parametrize("learn_all", [False, True])
def test_a_row_ends_with_its_last_response(learn_all: bool):
    conversation = Conversation(learn_all=learn_all)
    conversation.begin([1, 2], given=1)
    conversation.append_response(Tokens.sampled([3, 4], None))
    conversation.append_context([5, 6, 7])

    (row,) = conversation.rows

    assert [*row.prompt_ids, *row.response.ids] == [1, 2, 3, 4]
    assert conversation.ids == [1, 2, 3, 4, 5, 6, 7]
    assert len(row.response) - 1 == conversation.response_ends[0][1]


def test_a_row_that_is_cut_off_ends_with_its_last_response_too():
    conversation = Conversation()
    conversation.begin([1, 2])
    conversation.append_response(Tokens.sampled([3], None))
    conversation.append_context([4, 5])
    conversation.cut(3)
    conversation.append_response(Tokens.sampled([6], None))

    first, second = conversation.rows

    assert (first.prompt_ids, first.response.ids) == ((1, 2), (3,))
    assert (second.prompt_ids, second.response.ids) == ((3, 4, 5), (6,))
    assert conversation.response_ends == [(0, 0), (1, 0)]
