"""Turns of an expert with noise: most responses are well formed, but many actions are not the expert's."""

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
    """The prompt of a turn and the response to it."""

    messages: tuple[Message, ...]
    thought: str
    action: str
    probabilities: Mapping[str, float]
    """Probability of every action that the response might have had, `action` included."""

    @property
    def response(self) -> str:
        """The text of the response."""
        return response_text(self.thought, self.action)


def demonstrate(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings
) -> list[Demonstration]:
    """Return at least `settings.turns` turns of whole episodes; equal settings give equal turns."""
    turns: list[Demonstration] = []
    seed = FIRST_SEED + settings.seed * SEEDS_PER_WARM_START
    while len(turns) < settings.turns:
        turns.extend(_episode(environment, expert, settings, remembers, seed))
        seed += 1
    return turns


def response_text(thought: str, action: str) -> str:
    """Return a thought and an action in the form that environments parse."""
    return f"THINK: {thought}\nACTION:{action and ' ' + action}"


def action_probabilities(advised: str, actions: Sequence[str], settings: WarmStart) -> dict[str, float]:
    """Return the probability of each action in the response if the expert advises `advised`."""
    at_random = settings.action_noise / len(actions)
    probabilities = {action: at_random + (1 - settings.action_noise) * (action == advised) for action in actions}
    well_formed = {action: (1 - settings.malformed_share) * share for action, share in probabilities.items()}
    return well_formed | dict.fromkeys(MALFORMED_ACTIONS, settings.malformed_share / len(MALFORMED_ACTIONS))


def _episode(
    environment: Environment, expert: Expert, settings: WarmStart, remembers: MemorySettings, seed: int
) -> Iterator[Demonstration]:
    """Yield the turns of one episode, until the expert has no advice."""
    generator = random.Random(seed)
    memory = Memory(text_turns=remembers.text_turns, thought_turns=remembers.thought_turns)
    memory.begin(environment.reset(seed))
    action: str | None = None
    for _ in range(environment.max_turns):
        advised = expert.advise(action)
        if advised is None:
            return
        action = generator.choice(environment.actions) if generator.random() < settings.action_noise else advised
        # A malformed response does not end the episode: the environment gets the well-formed action.
        written = generator.choice(MALFORMED_ACTIONS) if generator.random() < settings.malformed_share else action
        probabilities = action_probabilities(advised, environment.actions, settings)
        turn = Demonstration(_prompt(environment, memory), expert.thought(), written, probabilities)
        yield turn
        result = environment.step(action)
        if result.terminated or result.truncated:
            return
        memory.remember(response=turn.response, action=action, observation=result.observation)


def _prompt(environment: Environment, memory: Memory) -> tuple[Message, ...]:
    """Return the messages that training builds with the template `compact`."""
    goal = environment.compact_prompt()
    return tuple(build_messages(memory, template="compact", instruction_prompt="", compact_prompt=goal))
