"""BabaIsAI: reach what wins, by the rules that stand on the map or by other ones that you make."""

import random
from typing import ClassVar

import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import suggestion
from turnmill.environments.babaisai.engine import World
from turnmill.environments.babaisai.expert import BabaIsAIExpert
from turnmill.environments.babaisai.levels import LEVELS
from turnmill.environments.babaisai.picture import draw
from turnmill.environments.babaisai.text import describe
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

ACTIONS = {
    "idle": "wait for one step",
    "up": "take one step up",
    "right": "take one step to the right",
    "down": "take one step down",
    "left": "take one step to the left",
}
"""Actions in the original's order, and what they do."""

LOST_YOU = "Nothing was YOU any more: the level begins anew."


class BabaIsAIOptions(EnvironmentOptions):
    """How long a level may take."""

    max_steps: int = Field(default=100, ge=1)
    """Actions after which an episode ends; the sooner it is won, the more it is worth."""


@register
class BabaIsAI(Environment):
    """One of forty tasks, on a map that the seed decides."""

    name: ClassVar[str] = "babaisai"
    Settings: ClassVar[type[EnvironmentOptions]] = BabaIsAIOptions
    actions = tuple(ACTIONS)
    default_action = "idle"

    def __init__(self, task: str | None, max_turns: int, options: BabaIsAIOptions) -> None:
        task = (task or "goto_win").removeprefix("env/")
        super().__init__(task, max_turns, options)
        if task not in LEVELS:
            raise SettingsError(f"environment.task: babaisai has no task {task!r}. {suggestion(task, [*LEVELS])}")
        self._level = LEVELS[task]
        self._max_steps = options.max_steps
        self._seed = self._num_steps = 0
        self.world = World(0, 0)
        """The map of the present episode; empty before the first reset."""

    def reset(self, seed: int) -> str:
        """Draw the map of a seed."""
        self._seed, self._num_steps = seed, 0
        return self._begin()

    def step(self, action: str) -> StepResult:
        """Move everything that is YOU."""
        outcome = self.world.step(action)
        self._num_steps += 1
        told = self._tell()
        if outcome == "win":
            return StepResult(told, 1 - 0.9 * self._num_steps / self._max_steps, terminated=True, info={"success": 1.0})
        return StepResult(
            told,
            -1.0 if outcome == "lose" else 0.0,
            terminated=outcome == "lose",
            truncated=outcome is None and self._num_steps >= self._max_steps,
            info={"success": 0.0},
        )

    def instruction_prompt(self) -> str:
        """Explain rules made of text, and the five actions."""
        actions = "\n".join(f"{action}: {description}" for action, description in ACTIONS.items())
        return (
            "You play Baba Is You, a game in which the rules of a level are blocks of text on its map.\n\n"
            f"These are the actions you can take, each with what it does:\n{actions}\n\n"
            "Tips:\n"
            "- Text in a line, from left to right or from top to bottom, is a rule: `key` `is` `win`.\n"
            "- You are what is YOU, and you win by walking onto what is WIN.\n"
            "- What is STOP is in the way; what has no such rule can be walked over.\n"
            "- Text can be pushed. Push a word out of its rule to break it, or into another to make one.\n"
            "- If the goal cannot be reached, another object may become what wins, or what you are.\n"
            "- Text that was pushed against a wall comes away only along it.\n\n"
            "PLAY!"
        )

    def compact_prompt(self) -> str:
        """State the goal."""
        return "goal: win"

    def repair(self, answer: str) -> str:
        """Read underscores as spaces."""
        return answer.replace("_", " ")

    def expert(self) -> BabaIsAIExpert:
        """Who plays this well, for a policy to imitate."""
        return BabaIsAIExpert(self)

    def render(self) -> np.ndarray:
        """Draw the map, words as words."""
        return draw(self.world)

    def _begin(self) -> str:
        self.world = self._level.build(random.Random(self._seed))
        return describe(self.world)

    def _tell(self) -> str:
        if not self.world.find("you"):
            return f"{LOST_YOU}\n\n{self._begin()}"
        return describe(self.world)
