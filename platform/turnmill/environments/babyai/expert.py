"""Who shows a policy how BabyAI is played: minigrid's bot, and the true words of what it goes for."""

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minigrid.core.constants import COLOR_NAMES
from minigrid.utils.baby_ai_bot import BabyAIBot

from turnmill.environments.babyai.text import seen_objects, steps

if TYPE_CHECKING:
    from turnmill.environments.babyai.environment import BabyAI

_TYPES = ("ball", "box", "key", "door", "object")
_DOOR_STATES = ("open", "closed", "locked")
_FARTHEST = 6
_TARGET = re.compile(rf"\b(?:(?:{'|'.join(COLOR_NAMES)}) )?(?:{'|'.join(_TYPES)})\b")


class BabyAIExpert:
    """minigrid's own bot, which sees more than the agent does."""

    def __init__(self, environment: "BabyAI") -> None:
        self.environment = environment
        self._bot: BabyAIBot | None = None

    def advise(self, last_action: str | None) -> str | None:
        """The best action after `last_action` (None: the episode begins); None where the bot is at its wits' end."""
        environment = self.environment
        if last_action is None:
            self._bot = BabyAIBot(environment.level)
        taken = None if last_action is None else environment.level.actions(environment.actions.index(last_action))
        assert self._bot is not None, "an episode begins with last_action None"
        # The bot signals a broken plan by assertions and errors of every kind.
        try:
            return environment.actions[int(self._bot.replan(taken))]
        except Exception:
            return None

    def thought(self) -> str:
        """Where the last thing that the mission names is, as far as the agent can see."""
        target = _target(self.environment.mission)
        words = set(target.split()) - {"object"}
        matching = [thing for thing in seen_objects(self.environment.view) if words <= set(thing.name.split())]
        if not matching:
            return f"the {target} is not visible"
        nearest = min(matching, key=lambda thing: (thing.distance, thing.right, thing.forward))
        return f"the {target} is {nearest.where}"

    def phrases(self) -> Iterator[str]:
        """Sentences that between them hold every word of every BabyAI level, each in its place in a line."""
        things = [f"{colour} {kind}" for colour, kind in itertools.product(COLOR_NAMES, _TYPES)]
        for thing in things:
            yield f"goal: put the {thing} next to a {thing}, then go to the {thing}"
            yield f"goal: pick up a {thing} and open the {thing} after you drop the {thing}"
            yield f"You carry a {thing}"
            yield f"the {thing} is not visible"
        for state in _DOOR_STATES:
            yield f"a {state} grey door"
        for place in ("in front of you", "behind you", "on your left", "on your right"):
            yield f"goal: go to the ball {place}, then pick up the ball {place} and"
        for number, direction in itertools.product(range(1, _FARTHEST + 1), ("left", "right", "forward")):
            yield f"a wall {steps(number, direction)} and"
        for action in self.environment.actions:
            yield f" {action}"


def _target(mission: str) -> str:
    """The thing a mission names last, with its colour if it has one."""
    named = _TARGET.findall(mission)
    return named[-1] if named else "object"
