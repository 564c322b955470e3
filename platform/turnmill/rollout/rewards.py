"""What trajectories are worth: finite numbers, or none at all."""

import asyncio
import math

from turnmill.core.errors import RewardError
from turnmill.tasks import Answer, Task, TaskSource


async def reward_of(answer: Answer, task: Task, source: TaskSource, *, whose: str) -> float:
    """What the task's source says of an answer. Raises RewardError, naming whose it is."""
    try:
        reward = float(await asyncio.to_thread(source.reward, task, answer))
    except Exception as error:
        raise RewardError(f"{whose}: its reward could not be told: {error!r}") from error
    return finite(reward, whose=whose)


def finite(reward: float, *, whose: str) -> float:
    """The reward. Raises RewardError where it is no finite number: of its whole group nothing could be learned."""
    if not math.isfinite(reward):
        raise RewardError(f"{whose}: its reward is {reward}: rewards are finite numbers.")
    return reward
