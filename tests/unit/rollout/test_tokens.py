"""Tokens of training rows."""

import pytest

from turnmill.rollout.tokens import num_runs


@pytest.mark.parametrize("placeholder", ["9", "151655"])
def test_a_run_of_a_placeholder_is_one_image_however_large_its_id(placeholder):
    # As from a tokenizer: equal numbers need not be the same object.
    ids = [int(token) for token in ("1", *[placeholder] * 3, "2", placeholder, "1", *[placeholder] * 2)]

    assert num_runs(ids, int(placeholder)) == 3
    assert num_runs(ids, None) == 0
