import pytest

from turnmill.rollout.token_integrity import count_unsampled_tokens, pack_tokens, token_checksum

SAMPLED = pack_tokens([5, 6, 7, 8, 256, 1])


def test_observations_between_sampled_tokens_are_not_counted():
    row = [5, 6, 90, 91, 7, 8, 256, 1], [1, 1, 0, 0, 1, 1, 1, 1]

    assert count_unsampled_tokens([row], SAMPLED) == 0


def test_rows_of_a_trajectory_are_matched_in_order():
    rows = [([5, 6], [1, 1]), ([90, 7, 8], [0, 1, 1])]

    assert count_unsampled_tokens(rows, SAMPLED) == 0
    assert count_unsampled_tokens(rows[::-1], SAMPLED) == 2


def test_a_truncated_row_has_no_unsampled_tokens():
    assert count_unsampled_tokens([([6, 7], [1, 1])], SAMPLED) == 0


@pytest.mark.parametrize(
    ("ids", "unsampled"), [([5, 60, 7, 8], 4), ([6, 5], 2), ([5, 7], 2), ([5, 6, 7, 8, 256, 1, 2], 7)]
)
def test_retokenized_moved_omitted_or_added_tokens_count_as_unsampled(ids, unsampled):
    assert count_unsampled_tokens([(ids, [1] * len(ids))], SAMPLED) == unsampled


def test_trained_observations_count_as_unsampled():
    assert count_unsampled_tokens([([5, 6, 90], [1, 1, 1])], SAMPLED) == 3


def test_bytes_across_two_tokens_do_not_match_a_token():
    # The bytes of 0x00010100 are found across the two tokens.
    assert count_unsampled_tokens([([0x00010100], [1])], pack_tokens([0x01000000, 0x00000001])) == 1


def test_a_fully_masked_row_has_no_unsampled_tokens():
    assert count_unsampled_tokens([([90, 91], [0, 0])], b"") == 0


def test_different_tokens_have_different_checksums():
    assert token_checksum([1, 2]) == token_checksum([1, 2])
    assert len({token_checksum([1, 2]), token_checksum([2, 1]), token_checksum([1]), token_checksum([513])}) == 4
