"""Turns of an expert, made mediocre on purpose: the answers are well formed, but many actions are not its own."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.rollout.memory import Memory
from turnmill.rollout.prompts import Message, build_messages
from turnmill.training.warm_start.expert import Expert

MALFORMED_ACTIONS = ("jump", "go left", "stop")
FIRST_SEED = 5_000_000
SEEDS_PER_WARM_START = 100_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the policy is shown in a turn, and what it is to answer."""

    messages: tuple[Message, ...]
    answer: str


def demonstrate(environment: Environment, expert: Expert, settings: WarmStart) -> list[Demonstration]:
    """At least `settings.turns` turns of whole episodes; equal settings give equal turns."""
    shown: list[Demonstration] = []
    seed = FIRST_SEED + settings.seed * SEEDS_PER_WARM_START
    while len(shown) < settings.turns:
        shown.extend(_episode(environment, expert, settings, seed))
        seed += 1
    return shown


def answer_text(thought: str, action: str) -> str:
    """A thought and an action in the form that environments read."""
    return f"THINK: {thought}\nACTION: {action}"


def _episode(environment: Environment, expert: Expert, settings: WarmStart, seed: int) -> Iterator[Demonstration]:
    """The turns of one episode, up to the one at which the expert has no more to say."""
    chance = random.Random(seed)
    memory = Memory(text_turns=1, thought_turns=1)
    memory.begin(environment.reset(seed))
    action = expert.advise(None)
    for _ in range(environment.max_turns):
        if action is None:
            return
        if chance.random() < settings.action_noise:
            action = chance.choice(environment.actions)
        # The environment gets the action all the same: a slip of the tongue, not of the hand.
        spoken = chance.choice(MALFORMED_ACTIONS) if chance.random() < settings.malformed_share else action
        answer = answer_text(expert.thought(), spoken)
        yield Demonstration(_prompt(environment, memory), answer)
        result = environment.step(action)
        if result.terminated or result.truncated:
            return
        memory.remember(response=answer, action=action, observation=result.observation)
        action = expert.advise(action)


def _prompt(environment: Environment, memory: Memory) -> tuple[Message, ...]:
    """What training shows a policy with the template `compact`."""
    goal = environment.compact_prompt()
    return tuple(build_messages(memory, template="compact", instruction_prompt="", compact_prompt=goal))
