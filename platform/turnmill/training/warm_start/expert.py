"""Experts of environments, whose actions a warm start imitates."""

from collections.abc import Iterable
from typing import Protocol

from turnmill.core.errors import SettingsError
from turnmill.environments import Environment


class Expert(Protocol):
    """Gives a good action in every state of its environment's current episode."""

    def advise(self, last_action: str | None) -> str | None:
        """Return the best action after `last_action`, None at the start of an episode; None if there is none."""

    def thought(self) -> str:
        """Return a true sentence about the current observation."""

    def phrases(self) -> Iterable[str]:
        """Return texts that together contain every word of prompts and responses, at its position in a line."""


def expert_of(environment: Environment) -> Expert:
    """Return the expert of an environment. Raises SettingsError if the environment has no method `expert`."""
    make = getattr(environment, "expert", None)
    if make is None:
        raise SettingsError(
            f"model.warmStart: the environment {environment.name!r} has no expert to imitate. "
            "Give model.path a folder with a model, or the environment's class a method `expert`."
        )
    expert: Expert = make()
    return expert
