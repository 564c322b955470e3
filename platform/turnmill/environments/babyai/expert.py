"""Expert for BabyAI: minigrid's bot, and thoughts about the position of its target."""

import itertools
import re
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from minigrid.core.constants import COLOR_NAMES
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.utils.baby_ai_bot import BabyAIBot

from turnmill.environments.babyai.text import DOOR_STATES, format_steps, visible_objects

_TYPES = ("ball", "box", "key", "door", "object")
_MAX_DISTANCE = 6
_TARGET = re.compile(rf"\b(?:(?:{'|'.join(COLOR_NAMES)}) )?(?:{'|'.join(_TYPES)})\b")


class Game(Protocol):
    """Part of the BabyAI environment that its expert reads."""

    actions: tuple[str, ...]
    level: RoomGridLevel
    view: np.ndarray

    @property
    def mission(self) -> str:
        """Goal of the episode in minigrid's words."""

    def compact_prompt(self) -> str:
        """Return the prompt that states the mission."""


class BabyAIExpert:
    """Advises minigrid's bot's actions; the bot knows the whole level, not only the agent's view."""

    def __init__(self, environment: Game) -> None:
        self.environment = environment
        self._bot: BabyAIBot | None = None

    def advise(self, last_action: str | None) -> str | None:
        """Return the best action after `last_action`, which is None at the first turn, or None if the bot fails."""
        environment = self.environment
        if last_action is None:
            self._bot = BabyAIBot(environment.level)
        taken = None if last_action is None else environment.level.actions(environment.actions.index(last_action))
        assert self._bot is not None, "the first call of an episode has last_action None"
        # The bot signals a failed plan by assertions and errors of every kind.
        try:
            return environment.actions[int(self._bot.replan(taken))]
        except Exception:
            return None

    def thought(self) -> str:
        """Return the position of the last object that the mission names, if it is in the agent's view."""
        target = _target(self.environment.mission)
        words = set(target.split()) - {"object"}
        matching = [thing for thing in visible_objects(self.environment.view) if words <= set(thing.name.split())]
        if not matching:
            return f"the {target} is not visible"
        nearest = min(matching, key=lambda thing: (thing.distance, thing.right, thing.forward))
        return f"the {target} is {nearest.position}"

    def phrases(self) -> Iterator[str]:
        """Yield texts that contain every word of every BabyAI level, with the space before it."""
        things = [f"{colour} {kind}" for colour, kind in itertools.product(COLOR_NAMES, _TYPES)]
        for thing in things:
            yield f"goal: put the {thing} next to a {thing}, then go to the {thing}"
            yield f"goal: pick up a {thing} and open the {thing} after you drop the {thing}"
            yield f"You carry a {thing}"
            yield f"the {thing} is not visible"
        for state in DOOR_STATES:
            yield f"a {state} grey door"
        for position in ("in front of you", "behind you", "on your left", "on your right"):
            yield f"goal: go to the ball {position}, then pick up the ball {position} and"
        for number, direction in itertools.product(range(1, _MAX_DISTANCE + 1), ("left", "right", "forward")):
            yield f"a wall {format_steps(number, direction)} and"
        for action in self.environment.actions:
            yield f" {action}"


def _target(mission: str) -> str:
    """Return the object that a mission names last, with its colour if it has one."""
    targets: list[str] = _TARGET.findall(mission)
    return targets[-1] if targets else "object"
