"""Names of episodes."""

import pytest

from turnmill.rollout.episode_id import EpisodeId


@pytest.mark.parametrize("validate", [False, True])
def test_an_episode_is_known_by_its_name(validate):
    episode = EpisodeId(12, 3, 4, validate)

    assert EpisodeId.from_name(str(episode)) == episode


@pytest.mark.parametrize("name", ["", "t1-2", "t1-2-3-4", "x1-2-3", "t1-2-3 ", "slot-1", "t-1-2-3"])
def test_other_names_are_of_no_episode(name):
    assert EpisodeId.from_name(name) is None
