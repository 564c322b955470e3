"""Any environment with gymnasium's interface whose observations and actions are, or can be, text."""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

NOTHING = ""
"""The default action of an environment that takes text: the environment is not asked at all."""


class GymnasiumOptions(EnvironmentOptions):
    """How the environment is made, and how it is told."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's own."""

    actions: list[str] | None = None
    """What the actions are called, where they are numbers; left out, they are called by their numbers."""

    default_action: str | None = None
    """Executed where a response holds no valid action; left out, the first one, or nothing where text is taken."""

    observation_key: str | None = None
    """Which part of the observation is told, where it has parts."""

    instruction: str = "Act step by step."
    """What the agent is told of the environment before the first observation."""


@register
class Gymnasium(Environment):
    """`task` is an id, `package:id`, or `package.module:Class`."""

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
                f"environment.options.defaultAction: {default!r} is no action of {task}. "
                f"Take one of {', '.join(self.actions[:20]) or 'those that it takes'}."
            )
        self.default_action = default
        self._told = ""

    def reset(self, seed: int) -> str:
        """Begin with a seed, which the environment has to follow."""
        seen, _ = self._inner.reset(seed=seed)
        self._told = self._text(seen)
        return self._told

    def step(self, action: str) -> StepResult:
        """Hand on the text of an action, or its number."""
        if action == NOTHING and self._takes_text:
            return StepResult(self._told)
        inner = action if self._takes_text else self._inner.action_space.start + self.actions.index(action)
        seen, reward, terminated, truncated, info = self._inner.step(inner)
        self._told = self._text(seen)
        return StepResult(self._told, float(reward), bool(terminated), bool(truncated), _numbers(info))

    def instruction_prompt(self) -> str:
        """What the job says, and the actions."""
        actions = f"\n\nThe actions you can take are: {', '.join(self.actions)}." if self.actions else ""
        return f"{self.options.instruction}{actions}"

    def match_action(self, answer: str) -> str | None:
        """A name of an action, or any text that the environment takes."""
        if not self._takes_text:
            return super().match_action(answer)
        answer = answer.strip()
        return answer if answer and self._inner.action_space.contains(answer) else None

    def render(self) -> np.ndarray:
        """Draw what the environment draws; it needs `arguments: {render_mode: rgb_array}`."""
        if self._inner.render_mode != "rgb_array":
            return super().render()
        picture: np.ndarray = self._inner.render()
        return picture

    def close(self) -> None:
        """Let go of what it holds."""
        self._inner.close()

    def _text(self, seen: Any) -> str:
        key = self.options.observation_key
        if key is not None:
            if not isinstance(seen, Mapping) or key not in seen:
                parts = ", ".join(map(str, seen)) if isinstance(seen, Mapping) else "none"
                raise SettingsError(
                    f"environment.options.observationKey: the observation has no part {key!r}. It has: {parts}."
                )
            seen = seen[key]
        return seen if isinstance(seen, str) else str(seen)


def _make(task: str | None, arguments: dict[str, Any]) -> Any:
    if task is None:
        raise SettingsError("environment.task: gymnasium needs one. Give an id, package:id, or package.module:Class.")
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
            f"environment.task: gymnasium cannot make {task!r}: {error}. Give an id that is registered, package:id "
            "where a package registers it, or package.module:Class, and correct environment.options.arguments."
        ) from error


def _names(space: Any, given: list[str] | None) -> tuple[str, ...]:
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise SettingsError(
            f"environment.task: its actions are {space}, and neither text nor a choice of some. "
            "Wrap it in one whose are."
        )
    if given is None:
        return tuple(str(space.start + number) for number in range(space.n))
    names = tuple(name.strip().lower() for name in given)
    if len(set(names)) != space.n:
        raise SettingsError(
            f"environment.options.actions: names {len(set(names))} different actions, and the environment has "
            f"{space.n}. Name every one."
        )
    return names


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in info.items() if isinstance(value, bool | int | float)}
