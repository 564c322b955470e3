from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turnmill.core.errors import SettingsError
from turnmill.trajectories.keys import JOURNALS_OF_ANY_RUN, Keys, run_and_name

names = st.text(st.characters(), max_size=10)


def hash_tag(key: str) -> str:
    """Return the hash tag, by which a Redis cluster places the key."""
    start = key.index("{") + 1
    return key[start : key.index("}", start)]


@given(names, names)
def test_different_names_have_different_keys(first, second):
    assume(first != second)
    keys = Keys("run")

    assert keys.trajectory(first) != keys.trajectory(second)
    assert keys.journal(first) != keys.journal(second)


@given(st.text(st.characters(), min_size=1, max_size=10), names)
def test_all_keys_of_a_trajectory_have_one_hash_tag(run, name):
    key = Keys(run).trajectory(name)

    assert {hash_tag(key), hash_tag(f"{key}:calls"), hash_tag(f"{key}:state:tool")} == {hash_tag(key)}


@given(names)
def test_a_pattern_finds_the_keys_of_its_kind_and_no_other(name):
    keys = Keys("run")

    assert fnmatchcase(keys.trajectory(name), keys.every_trajectory)
    assert fnmatchcase(keys.journal(name), keys.every_journal)
    for other in (f"{keys.trajectory(name)}:calls", keys.journal(name), Keys("run2").trajectory(name)):
        assert not fnmatchcase(other, keys.every_trajectory)


@given(names)
def test_the_name_of_a_trajectory_follows_from_its_key(name):
    keys = Keys("run")

    assert keys.trajectory_name(keys.journal(name)) == name


@pytest.mark.parametrize("run", ["", "x" * 201])
def test_an_empty_or_overlong_run_name_is_refused(run):
    with pytest.raises(SettingsError, match="1 to 200"):
        Keys(run)


@given(st.text(st.characters(), min_size=1, max_size=10), names)
def test_run_and_name_of_a_trajectory_follow_from_its_key(run, name):
    key = Keys(run).journal(name)

    assert run_and_name(key) == (run, name)
    assert fnmatchcase(key, JOURNALS_OF_ANY_RUN)
    assert not fnmatchcase(f"{key}:turns", JOURNALS_OF_ANY_RUN)
