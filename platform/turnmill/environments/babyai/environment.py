"""BabyAI: find, fetch and open things in a grid of rooms."""

import contextlib
import io
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.babyai.expert import BabyAIExpert
from turnmill.environments.babyai.levels import GOALS, Objects, level_id, make_level
from turnmill.environments.babyai.text import describe
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

ACTIONS = {
    "turn left": "face to the left of where you look",
    "turn right": "face to the right of where you look",
    "go forward": "move one step ahead",
    "pick up": "take the object that is one step ahead",
    "drop": "put down what you carry one step ahead",
    "toggle": "open or close what is one step ahead, such as a door; a locked one needs its key",
}
"""Actions in minigrid's order, with their effects."""

_SPELLINGS = {
    **{action.replace(" ", ""): action for action in ACTIONS},
    "go left": "turn left",
    "go right": "turn right",
}

_PLAN_PHRASES = (
    "turn left", "turn to the left", "turn right", "turn to the right", "go forward", "move forward", "pick up",
    "pick it up", "drop", "toggle", "open", "turning left", "turning right", "moving forward", "picking up", "dropping",
    "toggling", "opening",
)  # fmt: skip
"""What Verlog counts as the length of a plan; one phrase within another counts twice."""


class BabyAIOptions(EnvironmentOptions):
    """Options of `babyai`; they apply to the five goals and not to minigrid's own levels."""

    num_dists: int = Field(default=0, ge=0, le=8)
    """Distractors: objects in the room that the goal is not about."""

    objects: Objects = "training"
    """Objects that goals are about: those of the `training` split, those `held_out` from it, or `all`."""


@register
class BabyAI(Environment):
    """BabyAI (Chevalier-Boisvert et al., 2019): one of five goals or any registered level, observed in words."""

    name: ClassVar[str] = "babyai"
    Settings: ClassVar[type[EnvironmentOptions]] = BabyAIOptions
    actions = tuple(ACTIONS)
    plan_phrases = _PLAN_PHRASES
    default_action = "go forward"

    def __init__(self, task: str | None, max_turns: int, options: BabyAIOptions) -> None:
        task = task or "goto"
        super().__init__(task, max_turns, options)
        if task not in GOALS:
            level_id(task)
            _refuse_options(task, options)
        self._make_level = partial(
            make_level, task, num_dists=options.num_dists, objects=options.objects, max_steps=max_turns
        )
        self.level: RoomGridLevel = None
        """Minigrid level of the episode in progress; None before the first reset."""

        self.view = np.zeros((7, 7, 3), dtype=np.uint8)
        """The agent's view, in the form that `describe` takes."""

    def reset(self, seed: int) -> str:
        """Start an episode in a fresh level: minigrid's levels keep state from one episode to the next."""
        self.level = self._make_level()
        # minigrid prints each mission that it rejects.
        with contextlib.redirect_stdout(io.StringIO()):
            observation, _ = self.level.reset(seed=seed)
        return self._describe(observation)

    def step(self, action: str) -> StepResult:
        """Execute one action."""
        observation, reward, terminated, truncated, _ = self.level.step(self.actions.index(action))
        return StepResult(self._describe(observation), float(reward), terminated, truncated)

    @property
    def mission(self) -> str:
        """Goal of the episode in minigrid's words."""
        return str(self.level.mission)

    def instruction_prompt(self) -> str:
        """Return the prompt with the game, the mission and the six actions."""
        actions = "\n".join(f"{action}: {description}" for action, description in ACTIONS.items())
        return (
            f"You are an agent in a simple game of finding your way. Your goal is to {self.mission}.\n\n"
            f"These are the actions you can take, each with what it does:\n{actions}\n\n"
            "You will be told what you see, and you answer with what you do.\n\n"
            "Tips:\n"
            "- An action that left your observation unchanged will not change it the next time either: try another.\n"
            "- To act on an object, stand right before it and face it.\n\n"
            "PLAY!"
        )

    def compact_prompt(self) -> str:
        """Return the mission."""
        return f"goal: {self.mission}"

    def repair(self, answer: str) -> str:
        """Normalize `turn_left`, `turnleft` and `go left` to `turn left`."""
        answer = answer.replace("_", " ")
        return _SPELLINGS.get(answer, answer)

    def expert(self) -> BabyAIExpert:
        """Return an expert for warm starts."""
        return BabyAIExpert(self)

    def render(self) -> np.ndarray:
        """Draw the whole grid with the agent's view highlighted."""
        frame: np.ndarray = self.level.get_frame(highlight=True, tile_size=24)
        return frame

    def _describe(self, observation: Mapping[str, np.ndarray]) -> str:
        self.view = observation["image"]
        return describe(self.view, self.level.carrying)


def _refuse_options(task: str, options: BabyAIOptions) -> None:
    """Raise SettingsError for options of one of minigrid's levels, which define their own objects."""
    if options.model_fields_set:
        names = ", ".join(sorted(BabyAIOptions.model_fields[name].alias or name for name in options.model_fields_set))
        raise SettingsError(
            f"environment.options: {names} cannot be set for the task {task!r}, a level of minigrid's own. "
            f"Leave them out, or choose one of the goals {', '.join(GOALS)}."
        )
