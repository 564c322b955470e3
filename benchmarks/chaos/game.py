"""The task as an environment: it counts its turns, and rewards the last one by all that was said."""

import time
from typing import ClassVar

from chaos.effects import TOOL_SECONDS, TURNS, digest_of, reward_of, take_effect

from turnmill.environments.base import Environment, StepResult


class Game(Environment):
    """Takes any response for an action, and answers after a delay with its number."""

    name: ClassVar[str] = "chaos.game:Game"
    actions = ()
    default_action = ""

    def reset(self, seed: int) -> str:
        """Begin with nothing said."""
        self._said = [str(seed)]
        return "0"

    def parse_action(self, text: str) -> str:
        """Return the whole response."""
        return text

    def step(self, action: str) -> StepResult:
        """Count."""
        self._said.append(action)
        number = len(self._said) - 1
        time.sleep(TOOL_SECONDS / 2)
        take_effect(digest_of(self._said), number, digest_of(self._said))
        time.sleep(TOOL_SECONDS / 2)
        reward = reward_of("\n".join(self._said)) if number == TURNS else 0.0
        return StepResult(str(number), reward=reward, terminated=number == TURNS)

    def instruction_prompt(self) -> str:
        """Return nothing."""
        return ""
