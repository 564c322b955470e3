"""Rewards of episodes: finite numbers, or an error."""

import asyncio
import math

from turnmill.core.errors import RewardError
from turnmill.tasks import Answer, Task, TaskSource


async def compute_reward(answer: Answer, task: Task, source: TaskSource, *, episode_name: str) -> float:
    """Return the reward that the task's source gives an answer. Raises RewardError, naming the episode."""
    try:
        reward = float(await asyncio.to_thread(source.reward, task, answer))
    except Exception as error:
        raise RewardError(f"{episode_name}: its reward could not be computed: {error!r}") from error
    return require_finite(reward, episode_name=episode_name)


def require_finite(reward: float, *, episode_name: str) -> float:
    """Return the reward. Raises RewardError where it is not finite: its whole group could not be learned from."""
    if not math.isfinite(reward):
        raise RewardError(f"{episode_name}: its reward is {reward}: rewards are finite numbers.")
    return reward
