"""The expert of an environment, whose answers a warm start imitates."""

from collections.abc import Iterable
from typing import Protocol

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment


class Expert(Protocol):
    """Knows a good action in every situation of its environment's present episode."""

    def advise(self, last_action: str | None) -> str | None:
        """The best action after `last_action` (None: the episode begins); None where there is none to give."""

    def thought(self) -> str:
        """A true sentence about what the agent sees."""

    def phrases(self) -> Iterable[str]:
        """Texts that between them hold every word that a prompt or an answer may, each in its place in a line."""


def expert_of(environment: Environment) -> Expert:
    """The expert of an environment that has a method `expert`; others cannot be warm-started."""
    make = getattr(environment, "expert", None)
    if make is None:
        raise SettingsError(
            f"model.warmStart: the environment {environment.name!r} has no expert to imitate. "
            "Give model.path a folder with a model, or the environment's class a method `expert`."
        )
    expert: Expert = make()
    return expert
