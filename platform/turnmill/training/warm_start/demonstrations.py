"""Turns of an expert, made mediocre on purpose: the answers are well formed, but many actions are not its own."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.expert import Expert

Message = dict[str, str]

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
    observation = environment.reset(seed)
    system = {"role": "system", "content": environment.compact_prompt()}
    past: tuple[Message, ...] = ()
    action: str | None = None
    for _ in range(environment.max_turns):
        action = expert.advise(action)
        if action is None:
            return
        if chance.random() < settings.action_noise:
            action = chance.choice(environment.actions)
        # The environment gets the action all the same: a slip of the tongue, not of the hand.
        spoken = chance.choice(MALFORMED_ACTIONS) if chance.random() < settings.malformed_share else action
        answer = answer_text(expert.thought(), spoken)
        now = {"role": "user", "content": observation}
        yield Demonstration((system, *past, now), answer)
        past = (now, {"role": "assistant", "content": answer})
        result = environment.step(action)
        if result.terminated or result.truncated:
            return
        observation = result.observation
