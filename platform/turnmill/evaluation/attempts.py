"""The attempts of an evaluation, some of them at once."""

import asyncio
from collections.abc import Callable

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.player import Player
from turnmill.observability.evaluation import Attempt


async def play_all(
    player: Player, *, episodes: int, samples: int, concurrency: int, on_done: Callable[[int, int], None]
) -> list[Attempt]:
    """Play every sample of every episode, some at once; return them in order."""
    attempts: list[Attempt] = []
    turn = asyncio.Semaphore(concurrency)

    async def attempt(episode: int, sample: int) -> None:
        async with turn:
            played = await player.play(episode, sample)
        attempts.append(_attempt(episode, sample, played))
        on_done(len(attempts), episodes * samples)

    try:
        async with asyncio.TaskGroup() as group:
            for sample in range(samples):
                for episode in range(episodes):
                    group.create_task(attempt(episode, sample))
    except* SettingsError as errors:
        # Of those that fail in the same way at once, one is enough.
        raise errors.exceptions[0] from None
    return sorted(attempts, key=lambda attempt: (attempt.episode, attempt.sample))


def _attempt(episode: int, sample: int, played: EpisodeSummary | EpisodeFailure) -> Attempt:
    if isinstance(played, EpisodeFailure):
        return Attempt(episode, sample, False, 0.0, played.num_turns, "failed", played.cause)
    return Attempt(episode, sample, played.success, played.reward, played.num_turns, played.stop_reason, None)
