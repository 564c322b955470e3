"""Adapter for gymnasium environments whose observations and actions are, or can be written as, text."""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from pydantic import Field, JsonValue

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

NOTHING = ""
"""Default action of an environment with text actions: the environment is not stepped at all."""


class GymnasiumOptions(EnvironmentOptions):
    """Construction of the environment, and the form of its actions and observations."""

    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the environment."""

    actions: list[str] | None = None
    """Names of the actions of a discrete action space, in order; if omitted, their numbers."""

    default_action: str | None = None
    """Action executed if a response contains no valid one; if omitted, the first one, or none for text actions."""

    observation_key: str | None = None
    """Key of the observation that the agent reads, if observations are mappings."""

    instruction: str = "Act step by step."
    """Instructions for the agent, before the first observation."""


@register
class Gymnasium(Environment):
    """A gymnasium environment; `task` is an id, `package:id`, or `package.module:Class`."""

    name: ClassVar[str] = "gymnasium"
    Settings: ClassVar[type[EnvironmentOptions]] = GymnasiumOptions

    def __init__(self, task: str | None, max_turns: int, options: GymnasiumOptions) -> None:
        super().__init__(task, max_turns, options)
        self._inner = _make(task, options.arguments)
        space = self._inner.action_space
        self._takes_text = isinstance(space, gymnasium.spaces.Text)
        self.actions = () if self._takes_text else _names(space, options.actions)
        default = options.default_action or (NOTHING if self._takes_text else self.actions[0])
        if default != NOTHING and self.match_action(default) is None:
            raise SettingsError(
                f"environment.options.defaultAction: {default!r} is not an action of {task}. "
                f"Choose one of {', '.join(self.actions[:20]) or 'those that its action space contains'}."
            )
        self.default_action = default
        self._last_observation = ""

    def reset(self, seed: int) -> str:
        """Reset the environment with a seed, which must make it deterministic."""
        observation, _ = self._inner.reset(seed=seed)
        self._last_observation = self._text(observation)
        return self._last_observation

    def step(self, action: str) -> StepResult:
        """Step the environment with the text or the number of an action."""
        if action == NOTHING and self._takes_text:
            return StepResult(self._last_observation)
        inner = action if self._takes_text else self._inner.action_space.start + self.actions.index(action)
        observation, reward, terminated, truncated, info = self._inner.step(inner)
        self._last_observation = self._text(observation)
        return StepResult(self._last_observation, float(reward), bool(terminated), bool(truncated), _numbers(info))

    def instruction_prompt(self) -> str:
        """Return the job's `instruction` and the actions."""
        actions = f"\n\nThe actions you can take are: {', '.join(self.actions)}." if self.actions else ""
        return f"{self.options.instruction}{actions}"

    def match_action(self, answer: str) -> str | None:
        """Return the name of an action, or any text that the action space contains."""
        if not self._takes_text:
            return super().match_action(answer)
        answer = answer.strip()
        return answer if answer and self._inner.action_space.contains(answer) else None

    def render(self) -> np.ndarray:
        """Return the environment's own rendering; it needs `arguments: {render_mode: rgb_array}`."""
        if self._inner.render_mode != "rgb_array":
            return super().render()
        picture: np.ndarray = self._inner.render()
        return picture

    def close(self) -> None:
        """Close the environment."""
        self._inner.close()

    def _text(self, observation: object) -> str:
        key = self.options.observation_key
        if key is not None:
            if not isinstance(observation, Mapping) or key not in observation:
                keys = ", ".join(map(str, observation)) if isinstance(observation, Mapping) else "none"
                raise SettingsError(
                    f"environment.options.observationKey: the observation has no key {key!r}. It has: {keys}."
                )
            observation = observation[key]
        return observation if isinstance(observation, str) else str(observation)


def _make(task: str | None, arguments: Mapping[str, JsonValue]) -> Any:
    if task is None:
        raise SettingsError(
            "environment.task: gymnasium needs a task. Give an id, package:id, or package.module:Class."
        )
    try:
        found = import_object(task) if ":" in task else None
    except ImportError:
        found = None
    try:
        if isinstance(found, type) and issubclass(found, gymnasium.Env):
            return found(**arguments)
        return gymnasium.make(task, **arguments)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise SettingsError(
            f"environment.task: gymnasium cannot make {task!r}: {error}. Give a registered id, package:id if a package "
            "registers it, or package.module:Class, and correct environment.options.arguments."
        ) from error


def _names(space: Any, given: list[str] | None) -> tuple[str, ...]:
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise SettingsError(
            f"environment.task: its action space is {space}; only Text and Discrete are supported. "
            "Wrap it in an environment with one of these."
        )
    if given is None:
        return tuple(str(space.start + number) for number in range(space.n))
    names = tuple(name.strip().lower() for name in given)
    if len(set(names)) != space.n:
        raise SettingsError(
            f"environment.options.actions: {len(set(names))} different names are given, and the environment has "
            f"{space.n} actions. Name every one."
        )
    return names


def _numbers(info: Mapping[str, object]) -> dict[str, float]:
    return {str(name): float(value) for name, value in info.items() if isinstance(value, bool | int | float)}
