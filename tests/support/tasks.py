"""Tasks for whole runs that are there to take part in a run, not to solve anything."""

from typing import ClassVar

from turnmill.tasks.arithmetic import Arithmetic
from turnmill.tasks.base import Answer, Task, stable_hash


class CoinFlips(Arithmetic):
    """Arithmetic in which every other answer is worth something, whatever the policy has learned."""

    name: ClassVar[str] = "support.tasks:CoinFlips"

    def reward(self, task: Task, answer: Answer) -> float:
        """0 or 1, as it follows from what was said."""
        return float(stable_hash(task.truth, answer.whole) % 2)
