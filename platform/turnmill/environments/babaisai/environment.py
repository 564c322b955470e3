"""BabaIsAI: win by the rules on the map, or change the rules."""

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
"""Actions in the original's order, with their effects."""

LOST_YOU = "Nothing was YOU any more: the level begins anew."


class BabaIsAIOptions(EnvironmentOptions):
    """Length of episodes."""

    max_steps: int = Field(default=100, ge=1)
    """Actions after which an episode ends; the reward for winning falls with the actions that it took."""


@register
class BabaIsAI(Environment):
    """BabaIsAI (Cloos et al., 2024): one of forty tasks, on a map generated from the seed."""

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
        """State of the episode in progress; empty before the first reset."""

    def reset(self, seed: int) -> str:
        """Start on the map that is generated from the seed."""
        self._seed, self._num_steps = seed, 0
        return self._start_level()

    def step(self, action: str) -> StepResult:
        """Move everything that is YOU."""
        outcome = self.world.step(action)
        self._num_steps += 1
        observation = self._observation()
        if outcome == "win":
            reward = 1 - 0.9 * self._num_steps / self._max_steps
            return StepResult(observation, reward, terminated=True, info={"success": 1.0})
        return StepResult(
            observation,
            -1.0 if outcome == "lose" else 0.0,
            terminated=outcome == "lose",
            truncated=outcome is None and self._num_steps >= self._max_steps,
            info={"success": 0.0},
        )

    def instruction_prompt(self) -> str:
        """Return the prompt with the rules of the game and the five actions."""
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
        """Return the goal."""
        return "goal: win"

    def repair(self, answer: str) -> str:
        """Replace underscores by spaces."""
        return answer.replace("_", " ")

    def expert(self) -> BabaIsAIExpert:
        """Return an expert for warm starts."""
        return BabaIsAIExpert(self)

    def render(self) -> np.ndarray:
        """Draw the map, text blocks as words."""
        return draw(self.world)

    def _start_level(self) -> str:
        self.world = self._level.build(random.Random(self._seed))
        return describe(self.world)

    def _observation(self) -> str:
        if not self.world.find("you"):
            return f"{LOST_YOU}\n\n{self._start_level()}"
        return describe(self.world)
