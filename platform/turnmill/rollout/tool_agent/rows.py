"""Result of an episode with tools: its summary and its training rows."""

from dataclasses import dataclass

from turnmill.core.trajectory import EpisodeSummary
from turnmill.rollout.rows import EpisodeRow, episode_rows
from turnmill.rollout.tokens import Row


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """Result of an episode that did not fail."""

    summary: EpisodeSummary
    rows: tuple[Row, ...]
    detail: str
    """Stop reason by verl-tool's name."""

    trained: bool
    """False if its tokens are masked out of the loss."""


def verl_rows(result: EpisodeResult, *, log_probs: bool) -> list[EpisodeRow]:
    """Return the rows as verl's agent loops return them; all of them have the reward of the episode."""
    return episode_rows(result.rows, result.summary, trained=result.trained, log_probs=log_probs)
