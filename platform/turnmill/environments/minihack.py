"""MiniHack: small tasks on NetHack's engine."""

from typing import Any, ClassVar

from turnmill.core.errors import SettingsError
from turnmill.environments.extras import import_extra
from turnmill.environments.nethack.environment import Dungeon, make_registered
from turnmill.environments.registry import register

_BROKEN = ("MiniHack-Boxoban", "MiniHack-LavaCrossing", "MiniHack-MultiRoom", "MiniHack-SimpleCrossing")
"""What the ids of tasks begin with that MiniHack registers and cannot play."""


@register
class MiniHack(Dungeon):
    """One of MiniHack's registered tasks."""

    name: ClassVar[str] = "minihack"

    def make_game(self) -> Any:
        """MiniHack's environment of the task's name."""
        if (self.task or "").startswith(_BROKEN):
            raise SettingsError(
                f"environment.task: MiniHack 1.0.2 cannot play its own {self.task!r}, whatever is installed. Take "
                "another of its tasks, such as MiniHack-Corridor-R3-v0."
            )
        import_extra("minihack", extra="nethack")
        gymnasium = import_extra("gymnasium", extra="nethack")
        return make_registered(gymnasium, self.task or "MiniHack-Room-5x5-v0", "MiniHack", dict(self.options.arguments))

    def instruction_prompt(self) -> str:
        """What the task is about, and the rest as in NetHack."""
        return super().instruction_prompt().replace(self.goal, self._goal(), 1)

    def compact_prompt(self) -> str:
        """State the goal."""
        return f"goal: {self._goal()}"

    def _goal(self) -> str:
        if "quest" in (self.task or "").lower():
            return "Explore, fight what is in your way, and reach the stairs down."
        return "Explore the level and reach the stairs down."
