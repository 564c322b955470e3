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


class EverySecond(Arithmetic):
    """Arithmetic that rewards every second answer: there is something to learn from each group."""

    name: ClassVar[str] = "support.tasks:EverySecond"
    num_rewarded = 0

    def reward(self, task: Task, answer: Answer) -> float:
        """Return 1, then 0, then 1 again."""
        type(self).num_rewarded += 1
        return float(self.num_rewarded % 2)
