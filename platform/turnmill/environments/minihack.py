"""MiniHack: small tasks on NetHack's engine."""

from typing import Any, ClassVar

from turnmill.environments.extras import import_extra
from turnmill.environments.nethack.environment import Dungeon, make_registered
from turnmill.environments.registry import register


@register
class MiniHack(Dungeon):
    """One of MiniHack's registered tasks."""

    name: ClassVar[str] = "minihack"

    def make_game(self) -> Any:
        """MiniHack's environment of the task's name."""
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
        task = (self.task or "").lower()
        if "boxoban" in task:
            return "Push the boulders onto the fountains by walking into them."
        if "quest" in task:
            return "Explore, fight what is in your way, and reach the stairs down."
        return "Explore the level and reach the stairs down."
