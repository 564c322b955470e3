import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnmill import environments
from turnmill.testing.environment_fuzz import KINDS, Kind, give, make, responses

NEEDS_MORE = {"gymnasium", "minihack", "nethack", "openenv", "textworld"}
"""Environments that need a third-party package or environment."""


def test_every_built_in_environment_is_fuzzed():
    assert {kind.name for kind in KINDS} | NEEDS_MORE >= set(environments.names())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_response_gets_an_observation_and_an_invalid_one_the_penalty(kind: Kind):
    episode = make(kind)
    texts = responses(episode.environment.actions)

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**31 - 1), texts=st.lists(texts, max_size=12))
    def check(seed: int, texts: list[str]) -> None:
        give(episode, seed, texts)

    check()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_responses_reproduce_the_episode_in_any_environment(kind: Kind):
    actions = make(kind).environment.actions or ("search[tent]", "```sql\nSELECT 1\n```", "12", "x")
    chance = random.Random(str(kind))
    texts = [f"ACTION: {chance.choice(actions)}" for _ in range(30)]

    def play() -> list[object]:
        episode = make(kind)
        episode.reset(99)
        seen: list[object] = [episode.reset(7)]
        for text in texts:
            seen.append(result := episode.act(text))
            if result.done:
                break
        return seen

    assert play() == play()
