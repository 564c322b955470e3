import pytest

from turnmill.rollout.token_integrity import count_unsampled_tokens, pack_tokens, token_checksum

SAMPLED = pack_tokens([5, 6, 7, 8, 256, 1])


def test_tokens_as_sampled_are_not_foreign_whatever_stands_between_them():
    row = [5, 6, 90, 91, 7, 8, 256, 1], [1, 1, 0, 0, 1, 1, 1, 1]

    assert count_unsampled_tokens([row], SAMPLED) == 0


def test_rows_of_one_trajectory_follow_each_other():
    rows = [([5, 6], [1, 1]), ([90, 7, 8], [0, 1, 1])]

    assert count_unsampled_tokens(rows, SAMPLED) == 0
    assert count_unsampled_tokens(rows[::-1], SAMPLED) == 2


def test_a_row_that_was_cut_off_is_not_foreign():
    assert count_unsampled_tokens([([6, 7], [1, 1])], SAMPLED) == 0


@pytest.mark.parametrize(
    ("ids", "foreign"), [([5, 60, 7, 8], 4), ([6, 5], 2), ([5, 7], 2), ([5, 6, 7, 8, 256, 1, 2], 7)]
)
def test_tokens_spelled_anew_moved_left_out_or_added_are_foreign(ids, foreign):
    assert count_unsampled_tokens([(ids, [1] * len(ids))], SAMPLED) == foreign


def test_observations_that_are_learned_from_are_foreign():
    assert count_unsampled_tokens([([5, 6, 90], [1, 1, 1])], SAMPLED) == 3


def test_bytes_of_two_tokens_make_no_third():
    # 0x0100 and 0x0001 lie beside each other; 0x00010001 stands across them.
    assert count_unsampled_tokens([([0x00010000], [1])], pack_tokens([0x01000000, 0x00000001])) == 1


def test_a_row_of_which_nothing_is_learned_has_nothing_foreign():
    assert count_unsampled_tokens([([90, 91], [0, 0])], b"") == 0


def test_other_tokens_have_another_digest():
    assert token_checksum([1, 2]) == token_checksum([1, 2])
    assert len({token_checksum([1, 2]), token_checksum([2, 1]), token_checksum([1]), token_checksum([513])}) == 4
