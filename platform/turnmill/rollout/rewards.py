"""Rewards of episodes: finite numbers, or an error."""

import asyncio
import math

from turnmill.core.errors import RewardError
from turnmill.tasks import Answer, Task, TaskSource


async def compute_reward(answer: Answer, task: Task, source: TaskSource, *, episode_name: str) -> float:
    """Return the reward of an answer from the task's source. Raises RewardError with the episode's name."""
    try:
        reward = await source.score(task, answer)
    except Exception as error:
        raise RewardError(f"{episode_name}: its reward could not be computed: {error!r}") from error
    return require_finite(reward, episode_name=episode_name)


async def compute_prediction(answer: Answer, task: Task, source: TaskSource, *, episode_name: str) -> str | None:
    """Return what an answer says, for votes of a validation. Raises RewardError with the episode's name."""
    try:
        return await asyncio.to_thread(source.prediction, task, answer)
    except Exception as error:
        raise RewardError(f"{episode_name}: its prediction could not be read: {error!r}") from error


def require_finite(reward: float, *, episode_name: str) -> float:
    """Return the reward. Raises RewardError if it is not finite, as its whole group could not be trained on."""
    if not math.isfinite(reward):
        raise RewardError(f"{episode_name}: its reward is {reward}: rewards are finite numbers.")
    return reward
