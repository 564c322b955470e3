"""Demonstrations of GRL's agents as token ids: conversations with an expert's thought and action in every turn."""

import random
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from turnmill.core.errors import SettingsError
from turnmill.environments.grl import EnvironmentAgent
from turnmill.environments.grl.agent_adapter import agent_of
from turnmill.jobs.grl_agent import NamedAgent
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.demonstrations import FIRST_SEED, MALFORMED_ACTIONS, SEEDS_PER_WARM_START
from turnmill.training.warm_start.expert import Expert, expert_of
from turnmill.training.warm_start.rows import next_token_distributions
from turnmill.training.warm_start.tokenizer import build_tokenizer

Message = dict[str, str]
# Single characters, for words that occur in no demonstration.
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


@dataclass(frozen=True, slots=True)
class _Turn:
    """Messages of a turn and the response to them."""

    messages: Sequence[Message]
    prefix: str
    thought: str
    action: str
    probabilities: dict[str, float]
    """Probability of every action that might have been chosen, `action` included."""

    @property
    def opening(self) -> str:
        """The response after the prefix, up to the action."""
        return f" {self.thought} </think> <answer>"


def build_agent_rows(agents: Sequence[NamedAgent], settings: WarmStart) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """Return a tokenizer for the agents' language, and at least `settings.turns` of an expert's turns as token ids."""
    episodes = list(_episodes(agents, settings))
    tokenizer = build_tokenizer([*_texts(episodes), *_CHARACTERS])
    row_tokenizer = _RowTokenizer(tokenizer)
    return tokenizer, [row for episode in episodes for row in row_tokenizer.rows(episode)]


def _episodes(agents: Sequence[NamedAgent], settings: WarmStart) -> Iterator[list[_Turn]]:
    """Yield whole episodes, of each kind of agent in turn."""
    players = [(agent, expert_of(agent.environment)) for agent in map(_player, agents)]
    first, shown = FIRST_SEED + settings.seed * SEEDS_PER_WARM_START, 0
    for number in range(SEEDS_PER_WARM_START):
        agent, expert = players[number % len(players)]
        episode = _episode(agent, expert, settings, first + number)
        shown += len(episode)
        yield episode
        if shown >= settings.turns:
            return


def _player(named: NamedAgent) -> EnvironmentAgent:
    agent = agent_of(named)
    if not isinstance(agent, EnvironmentAgent) or agent.prefix != "<think>":
        raise SettingsError(
            f"model.warmStart: the agent {named.name!r} has no expert to imitate. Give model.path a folder with a "
            "model, or choose an agent with enableThink in an environment with an expert."
        )
    return agent


def _episode(agent: EnvironmentAgent, expert: Expert, settings: WarmStart, seed: int) -> list[_Turn]:
    chance = random.Random(seed)
    output, turns = agent.reset(seed), []
    action: str | None = None
    while not agent.done and (advised := expert.advise(action)) is not None:
        actions = agent.environment.actions
        action = chance.choice(actions) if chance.random() < settings.action_noise else advised
        malformed = chance.random() < settings.malformed_share
        turns.append(
            _Turn(
                agent.get_llm_prompts(output), agent.prefix, expert.thought(),
                chance.choice(MALFORMED_ACTIONS) if malformed else agent.word_for(action),
                _action_probabilities(agent, advised, settings),
            )
        )  # fmt: skip
        output = agent.get_env_outputs(f"{turns[-1].opening} {turns[-1].action} </answer>")
        if malformed:
            action = None
    return turns


def _action_probabilities(agent: EnvironmentAgent, advised: str, settings: WarmStart) -> dict[str, float]:
    actions = agent.environment.actions
    at_random, well_formed = settings.action_noise / len(actions), 1 - settings.malformed_share
    probabilities = {
        agent.word_for(action): well_formed * (at_random + (1 - settings.action_noise) * (action == advised))
        for action in actions
    }
    return probabilities | dict.fromkeys(MALFORMED_ACTIONS, settings.malformed_share / len(MALFORMED_ACTIONS))


def _texts(episodes: Iterable[Sequence[_Turn]]) -> Iterator[str]:
    for turn in (turn for episode in episodes for turn in episode):
        yield from (message["content"] for message in turn.messages)
        yield turn.prefix
        yield turn.opening
        yield from (f" {action} </answer>" for action in turn.probabilities)


class _RowTokenizer:
    """Tokenizes conversations as the agent loop does: earlier tokens stay, and new ones are appended."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._builder: Any = create_continuous_token_builder(tokenizer, hf_model_type="qwen2")

    def rows(self, episode: Sequence[_Turn]) -> Iterator[Row]:
        context: list[int] = []
        for number, turn in enumerate(episode):
            messages = [dict(message) for message in turn.messages]
            if number == 0:
                context = list(self._builder.build_initial_tokens(messages))
            else:
                context = self._builder.merge_context_tokens(messages[:-1], messages, context).token_ids
            context = [*context, *self._ids(turn.prefix)]
            response = (*self._ids(turn.opening), *self._action_ids(turn.action))
            probabilities = {self._action_ids(action): chance for action, chance in turn.probabilities.items()}
            targets = next_token_distributions(
                self._action_ids(turn.action), probabilities, vocabulary=len(self.tokenizer)
            )
            yield Row(tuple(context), response, targets)
            context = [*context, *response]

    def _action_ids(self, action: str) -> tuple[int, ...]:
        return (*self._ids(f" {action} </answer>"), self.tokenizer.eos_token_id)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))
