import os

import pytest

from turnmill.sandboxes import fork_server
from turnmill.sandboxes.fork_server import reserve_user


@pytest.fixture
def first(monkeypatch) -> int:
    """Return the first of three user ids that no sandbox on this machine uses."""
    first = 10**9 + os.getpid()
    monkeypatch.setattr(fork_server, "FIRST_USER", first)
    monkeypatch.setattr(fork_server, "NUM_USERS", 3)
    return first


def test_a_reserved_user_is_not_given_out_again_until_it_is_released(first):
    user, reservation = reserve_user(first)
    other, other_reservation = reserve_user(first)

    assert [user, other] == [first + 1, first + 2]

    reservation.close()
    again, reservation = reserve_user(first)
    assert again == first + 1
    reservation.close()
    other_reservation.close()


def test_reserving_fails_while_all_users_are_taken(first):
    reservations = [reserve_user(first)[1] for _ in range(3)]

    with pytest.raises(OSError, match="all 3 users of tasks are taken"):
        reserve_user(first)

    for reservation in reservations:
        reservation.close()
