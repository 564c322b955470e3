"""Tasks for tests of whole runs, in which learning does not matter."""

from typing import ClassVar

from turnmill.tasks.arithmetic import Arithmetic
from turnmill.tasks.base import Answer, Task, stable_hash


class CoinFlips(Arithmetic):
    """Arithmetic that rewards half of all answers, whatever the policy has learned."""

    name: ClassVar[str] = "support.tasks:CoinFlips"

    def reward(self, task: Task, answer: Answer) -> float:
        """Return 0 or 1, by a hash of the answer."""
        return float(stable_hash(task.truth, answer.whole) % 2)
