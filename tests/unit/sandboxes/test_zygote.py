import os

import pytest

from turnmill.sandboxes import zygote
from turnmill.sandboxes.zygote import reserve_user


@pytest.fixture
def first(monkeypatch) -> int:
    """The first of three users that no sandbox on this machine has."""
    first = 10**9 + os.getpid()
    monkeypatch.setattr(zygote, "FIRST_USER", first)
    monkeypatch.setattr(zygote, "NUM_USERS", 3)
    return first


def test_a_user_is_nobody_elses_until_it_is_let_go(first):
    user, kept = reserve_user(first)
    other, kept_too = reserve_user(first)

    assert [user, other] == [first + 1, first + 2]

    kept.close()
    again, kept = reserve_user(first)
    assert again == first + 1
    kept.close()
    kept_too.close()


def test_it_is_an_error_that_may_pass_if_all_are_taken(first):
    all_kept = [reserve_user(first)[1] for _ in range(3)]

    with pytest.raises(OSError, match="all 3 users of tasks are taken"):
        reserve_user(first)

    for kept in all_kept:
        kept.close()
