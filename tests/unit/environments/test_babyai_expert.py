import random
import re

import pytest

from turnmill.environments import create
from turnmill.environments.babyai.environment import BabyAI


def begin(task: str, seed: int = 0) -> BabyAI:
    environment = create("babyai", task, 64)
    assert isinstance(environment, BabyAI)
    environment.reset(seed)
    return environment


def words(text: str) -> set[str]:
    """Words with the space before them: at the start of a line a word is a different token than within a line."""
    return set(re.findall(r" ?[^ \n]+", text))


@pytest.mark.parametrize("task", ["GoToObj", "goto", "pickup", "putnext", "pick_up_seq_go_to"])
def test_the_experts_actions_succeed(task: str):
    environment = begin(task)
    expert = environment.expert()
    action = None

    for _ in range(environment.max_turns):
        action = expert.advise(action)
        result = environment.step(action)
        if result.terminated:
            break

    assert result.reward > 0


def test_the_expert_recovers_from_other_actions():
    environment = begin("GoToObj", seed=4)
    expert = environment.expert()
    chance = random.Random(4)
    action = None

    for _ in range(10):
        assert expert.advise(action) in environment.actions
        action = chance.choice(("turn left", "turn right"))
        environment.step(action)


def test_a_thought_describes_the_position_of_the_goal_as_the_observation_does():
    for seed in range(20):
        environment = begin("GoToObj", seed)
        thought = environment.expert().thought()
        target = environment.mission.removeprefix("go to the ")

        if thought == f"the {target} is not visible":
            assert target not in environment.reset(seed)
        else:
            where = thought.removeprefix(f"the {target} is ")
            assert f"a {target} {where}" in environment.reset(seed).split("\n")


def test_phrases_contain_every_word_of_every_kind_of_level():
    known = {word for phrase in begin("GoToObj").expert().phrases() for word in words(phrase)}

    for task in ("GoToObj", "goto", "pickup", "open", "putnext", "pick_up_seq_go_to", "BossLevel", "Synth", "GoToSeq"):
        for seed in range(10):
            environment = create("babyai", task, 8)
            texts = [environment.reset(seed), environment.compact_prompt(), environment.expert().thought()]
            assert set().union(*map(words, texts)) <= known
