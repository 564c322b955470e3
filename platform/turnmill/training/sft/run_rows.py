"""Rows of an earlier run: the tokens of its trajectories with enough reward, as they were sampled."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from turnmill.core.errors import SettingsError
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import EpisodeFilter, EpisodeRecord, TrajectoryLog, TurnRecord
from turnmill.training.sft.tokens import TokenRow
from turnmill.training.verl.types import Tokenizer

TREES = "harness"
"""Type of the agents whose turns are a tree, each with the tokens that it adds to those of its parent."""


@dataclass(frozen=True, slots=True)
class _Context:
    """Tokens up to the end of a response."""

    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()

    def plus(self, ids: Sequence[int], *, learned: int) -> "_Context":
        return _Context((*self.ids, *ids), (*self.mask, *[learned] * len(ids)))


def chosen_episodes(run_dir: Path, min_reward: float, place: str) -> list[EpisodeRecord]:
    """Return the whole trajectories of a run's training with enough reward; those with images are left out.

    Raises SettingsError, for the field `place`, if there are none.
    """
    location = f"{place}: {str(run_dir)!r}"
    folder = RunFolder(run_dir)
    if not folder.job.is_file():
        raise SettingsError(f"{location} is no folder of a run. Give one that `turnmill run` has made.")
    if _agent_of(folder).get("useInferenceChatTemplate"):
        raise SettingsError(f"{location} is of an agent with useInferenceChatTemplate. Give conversations as data.")
    log = TrajectoryLog(folder)
    whole = [
        episode
        for episode in log.read_episodes(EpisodeFilter(validation=False))
        if episode.outcome in ("solved", "unsolved") and not any(turn.images for turn in episode.turns)
    ]
    if not whole:
        raise SettingsError(f"{location} has no trajectories of training. Give a run that has taken a step.")
    chosen = [episode for episode in whole if episode.reward >= min_reward]
    if not chosen:
        best = max(episode.reward for episode in whole)
        raise SettingsError(
            f"{location} has no trajectory with the reward {min_reward:g}: the best has {best:g}. Lower minReward."
        )
    return chosen


def trajectory_rows(run_dir: Path, episodes: Sequence[EpisodeRecord]) -> Iterator[TokenRow]:
    """Yield the rows of trajectories: one for each context that no later response continues."""
    trees = _agent_of(RunFolder(run_dir)).get("type") == TREES
    for episode in episodes:
        yield from _rows(episode.turns, trees=trees)


def require_vocabulary(run_dir: Path, tokenizer: Tokenizer, place: str) -> None:
    """Raise SettingsError if a run's tokens are others than the model's."""
    # transformers takes seconds to import.
    from turnmill.training.vocabulary import token_pieces

    try:
        known = json.loads(RunFolder(run_dir).vocabulary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if known != json.loads(json.dumps(token_pieces(tokenizer))):
        raise SettingsError(
            f"{place}: {str(run_dir)!r} is of a model with another vocabulary, or has no vocabulary.json. Give a run "
            "of the same model, or conversations as data."
        )


def _agent_of(folder: RunFolder) -> dict[str, object]:
    """Return the section `agent` of a run's job; empty if it cannot be read."""
    try:
        agent = yaml.safe_load(folder.job.read_text())["spec"]["agent"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return agent if isinstance(agent, dict) else {}


def _rows(turns: Sequence[TurnRecord], *, trees: bool) -> Iterator[TokenRow]:
    """Yield rows whose learned tokens are the responses, each in one row alone."""
    contexts = {-1: _Context()}
    continued = {-1}
    for turn in turns:
        parent = turn.turn - 1 if turn.parent is None else turn.parent
        if turn.prompt_ids and not trees:
            parent = -1
        if (before := contexts.get(parent)) is None:
            continue
        if parent in continued:
            # Another branch has the responses before this one in its row.
            before = _Context(before.ids, (0,) * len(before.ids))
        continued.add(parent)
        asked = before.plus(turn.prompt_ids, learned=0)
        contexts[turn.turn] = asked.plus(turn.response_ids, learned=1).plus(turn.observation_ids, learned=0)
    for number, context in contexts.items():
        if number not in continued and any(context.mask):
            end = len(context.mask) - context.mask[::-1].index(1)
            yield TokenRow(context.ids[:end], context.mask[:end])
