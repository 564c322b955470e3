"""MiniHack: small tasks in NetHack's engine."""

from typing import Any, ClassVar

from turnmill.core.errors import SettingsError
from turnmill.environments.extras import import_extra
from turnmill.environments.nethack.environment import NetHackEnvironment, make_registered
from turnmill.environments.registry import register

_BROKEN = ("MiniHack-Boxoban", "MiniHack-LavaCrossing", "MiniHack-MultiRoom", "MiniHack-SimpleCrossing")
"""Prefixes of the ids of tasks that MiniHack registers but cannot create."""


@register
class MiniHack(NetHackEnvironment):
    """One of MiniHack's registered tasks (Samvelyan et al., 2021)."""

    name: ClassVar[str] = "minihack"

    def make_game(self) -> Any:
        """Create MiniHack's environment of the task. Raises SettingsError if it cannot be created."""
        if (self.task or "").startswith(_BROKEN):
            raise SettingsError(
                f"environment.task: MiniHack 1.0.2 registers {self.task!r} but cannot create it. Choose another of its "
                "tasks, such as MiniHack-Corridor-R3-v0."
            )
        import_extra("minihack", extra="nethack")
        gymnasium = import_extra("gymnasium", extra="nethack")
        return make_registered(gymnasium, self.task or "MiniHack-Room-5x5-v0", "MiniHack", dict(self.options.arguments))

    def instruction_prompt(self) -> str:
        """Return NetHack's prompt with the goal of the task."""
        return super().instruction_prompt().replace(self.goal, self._goal(), 1)

    def compact_prompt(self) -> str:
        """Return the goal."""
        return f"goal: {self._goal()}"

    def _goal(self) -> str:
        if "quest" in (self.task or "").lower():
            return "Explore, fight what is in your way, and reach the stairs down."
        return "Explore the level and reach the stairs down."
