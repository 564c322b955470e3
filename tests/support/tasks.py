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


class Guesses(Arithmetic):
    """Arithmetic in which an answer without the tool counts as correct in a quarter of the cases, whatever it says.

    A call of the tool is the better choice for those who write its ten tokens without a fault, and the worse one if
    every tenth token is wrong.
    """

    name: ClassVar[str] = "support.tasks:Guesses"

    def reward(self, task: Task, answer: Answer) -> float:
        """Return 1 for the correct number, or for luck, else 0."""
        if "<result>" in answer.whole or not answer.last.startswith("answer:"):
            return super().reward(task, answer)
        return float(stable_hash(task.truth, answer.last) % 4 == 0)
