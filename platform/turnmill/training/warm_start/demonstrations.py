"""Turns of an expert, made mediocre on purpose: the answers are well formed, but many actions are not its own."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnmill.environments import Environment
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import MemorySettings
from turnmill.rollout.verlog.memory import Memory
from turnmill.rollout.verlog.prompts import Message, build_messages
from turnmill.training.warm_start.expert import Expert

MALFORMED_ACTIONS = ("jump", "go left", "stop")
FIRST_SEED = 5_000_000
SEEDS_PER_WARM_START = 100_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The prompt of a turn and the answer to it."""

    messages: tuple[Message, ...]
    thought: str
    spoken: str
    """The action as the answer says it."""

    chances: Mapping[str, float]
    """Every action that the answer might have said instead, `spoken` included, with its probability."""

    @property
    def answer(self) -> str:
        """The whole answer."""
        return answer_text(self.thought, self.spoken)


def demonstrate(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings
) -> list[Demonstration]:
    """At least `settings.turns` turns of whole episodes; equal settings give equal turns."""
    shown: list[Demonstration] = []
    seed = FIRST_SEED + settings.seed * SEEDS_PER_WARM_START
    while len(shown) < settings.turns:
        shown.extend(_episode(environment, expert, settings, remembers, seed))
        seed += 1
    return shown


def answer_text(thought: str, action: str) -> str:
    """A thought and an action in the form that environments read."""
    return f"THINK: {thought}\nACTION:{action and ' ' + action}"


def spoken_chances(advised: str, actions: Sequence[str], settings: WarmStart) -> dict[str, float]:
    """Return the probability of each action in the answer where the expert advises one of them."""
    at_random = settings.action_noise / len(actions)
    chances = {action: at_random + (1 - settings.action_noise) * (action == advised) for action in actions}
    well_formed = {action: (1 - settings.malformed_share) * chance for action, chance in chances.items()}
    return well_formed | dict.fromkeys(MALFORMED_ACTIONS, settings.malformed_share / len(MALFORMED_ACTIONS))


def _episode(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings, seed: int
) -> Iterator[Demonstration]:
    """The turns of one episode, up to the one at which the expert has no more to say."""
    chance = random.Random(seed)
    memory = Memory(text_turns=remembers.text_turns, thought_turns=remembers.thought_turns)
    memory.begin(environment.reset(seed))
    action: str | None = None
    for _ in range(environment.max_turns):
        advised = expert.advise(action)
        if advised is None:
            return
        action = chance.choice(environment.actions) if chance.random() < settings.action_noise else advised
        # The environment gets the action all the same: a slip of the tongue, not of the hand.
        spoken = chance.choice(MALFORMED_ACTIONS) if chance.random() < settings.malformed_share else action
        chances = spoken_chances(advised, environment.actions, settings)
        shown = Demonstration(_prompt(environment, memory), expert.thought(), spoken, chances)
        yield shown
        result = environment.step(action)
        if result.terminated or result.truncated:
            return
        memory.remember(response=shown.answer, action=action, observation=result.observation)


def _prompt(environment: Environment, memory: Memory) -> tuple[Message, ...]:
    """Return the messages that training builds with the template `compact`."""
    goal = environment.compact_prompt()
    return tuple(build_messages(memory, template="compact", instruction_prompt="", compact_prompt=goal))
