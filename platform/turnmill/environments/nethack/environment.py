"""NetHack, and the base class of environments on its engine: the screen is text, actions are names of keys."""

import random
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, JsonValue

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

_DIRECTIONS = {
    "N": "north", "E": "east", "S": "south", "W": "west",
    "NE": "northeast", "SE": "southeast", "SW": "southwest", "NW": "northwest",
}  # fmt: skip
_EXCLUDED_KEYS = frozenset(
    {
        "quit",
        "save",
        "shell",
        "options",
        "extcmd",
        "extlist",
        "help",
        "history",
        "prevmsg",
        "redraw",
        "version",
        "versionshort",
    }
)
"""Keys that leave the game or concern the program only."""

_MORE = "--More--"
_MAX_PAGES = 50


class NetHackOptions(EnvironmentOptions):
    """Handling of long messages, length of episodes, and arguments of the game."""

    skip_more: bool = False
    """Skip the pages of long messages: the agent reads the last one only."""

    max_steps: int = Field(default=100_000, ge=1)
    """Keys after which the game ends."""

    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the game's environment, such as `character`."""


class NetHackEnvironment(Environment):
    """Base class of games on NetHack's engine."""

    Settings: ClassVar[type[EnvironmentOptions]] = NetHackOptions
    goal: ClassVar[str] = "Get as far as possible."

    def __init__(self, task: str | None, max_turns: int, options: NetHackOptions) -> None:
        super().__init__(task, max_turns, options)
        self._game = self.make_game()
        keys = list(self._game.unwrapped.actions)
        self._indices: dict[str, int] = {}
        for index, key in enumerate(keys):
            if (name := key_name(key)) not in _EXCLUDED_KEYS:
                self._indices.setdefault(name, index)
        self._by_character = {chr(int(key)): key_name(key) for key in keys if 32 < int(key) < 127}
        self.actions = tuple(self._indices)
        self.default_action = "wait" if "wait" in self._indices else self.actions[0]

    def make_game(self) -> Any:
        """Create the game, a gymnasium environment."""
        raise NotImplementedError

    def reset(self, seed: int) -> str:
        """Start the game of a seed; NetHack must not reseed itself, so that the game is deterministic."""
        # MiniHack selects a level with Python's global generator.
        random.seed(seed)
        self._game.unwrapped.seed(core=seed, disp=seed, reseed=False)
        observation, _ = self._game.reset()
        return _screen(observation)

    def step(self, action: str) -> StepResult:
        """Press a key."""
        observation, reward, terminated, truncated, _ = self._game.step(self._indices[action])
        num_pages = 0
        while (
            self.options.skip_more
            and _MORE in _screen(observation)
            and not (terminated or truncated)
            and num_pages < _MAX_PAGES
        ):
            observation, more_reward, terminated, truncated, _ = self._game.step(self._indices["more"])
            reward, num_pages = reward + more_reward, num_pages + 1
        return StepResult(_screen(observation), float(reward), bool(terminated), bool(truncated))

    def instruction_prompt(self) -> str:
        """Return the prompt with the screen and the keys."""
        return (
            f"You play a dungeon game on a screen of text. {self.goal}\n\n"
            "The first line of the screen is a message, the last two are your state; between them is the map. @ is "
            "you, . is floor, # a corridor, + a door or a book, < and > are stairs, letters are creatures.\n\n"
            f"The actions you can take are: {', '.join(self.actions)}.\n\n"
            "Where the message asks for an item, answer with its letter; where it asks for a direction, with the "
            "direction; where it ends with --More--, with more. You attack by moving into a creature.\n\n"
            "PLAY!"
        )

    def compact_prompt(self) -> str:
        """Return the goal."""
        return f"goal: {self.goal}"

    def match_action(self, answer: str) -> str | None:
        """Return the key of a name, or of a single character as it is typed."""
        answer = answer.strip()
        if len(answer) == 1 and answer in self._by_character:
            answer = self._by_character[answer]
        return super().match_action(answer.replace("_", " "))

    def close(self) -> None:
        """End the game."""
        self._game.close()


@register
class NetHack(NetHackEnvironment):
    """The NetHack Learning Environment (Küttler et al., 2020); its challenge accepts seeds here, too."""

    name: ClassVar[str] = "nethack"
    goal: ClassVar[str] = "Go down into the dungeon, and get as far as possible."

    def make_game(self) -> Any:
        """Create NLE's environment of the task. Raises SettingsError if it cannot be created."""
        nle = import_extra("nle.nethack", extra="nethack")
        gymnasium = import_extra("gymnasium", extra="nethack")
        import_extra("nle.env", extra="nethack")
        arguments = {"max_episode_steps": self.options.max_steps, **self.options.arguments}
        task = self.task or "NetHackChallenge-v0"
        if task == "NetHackChallenge-v0":
            # NLE's own class of the challenge refuses seeds.
            task = "NetHackScore-v0"
            arguments = {
                "actions": nle.ACTIONS,
                "character": "@",
                "allow_all_yn_questions": True,
                "allow_all_modes": True,
                "penalty_step": 0.0,
                **arguments,
            }
        return make_registered(gymnasium, task, "NetHack", arguments)


def make_registered(gymnasium: Any, task: str, prefix: str, arguments: Mapping[str, object]) -> Any:
    """Create the registered environment `task`. Raises SettingsError, with all ids that begin with `prefix`."""
    known = sorted(name for name in gymnasium.registry if name.startswith(prefix))
    if task not in known:
        raise SettingsError(f"environment.task: there is no task {task!r}. Known: {', '.join(known)}.")
    try:
        return gymnasium.make(
            task, disable_env_checker=True, observation_keys=("tty_chars", "glyphs", "blstats"), **arguments
        )
    except TypeError as error:
        raise SettingsError(f"environment.options.arguments: {task} does not accept them: {error}.") from error
    except ImportError as error:
        raise SettingsError(f"environment.task: {task} needs another package: {error}. Install it.") from error


def key_name(key: Enum) -> str:
    """Return the name of a key as an action: `north`, `far north`, `eat`, `7`."""
    kind, name = type(key).__name__, key.name
    if kind.startswith("Compass"):
        return f"far {_DIRECTIONS[name]}" if kind.endswith("Longer") else _DIRECTIONS[name]
    return str(name).removeprefix("NUM_").lower()


def _screen(observation: Mapping[str, np.ndarray]) -> str:
    lines = [bytes(row).decode("latin-1").replace("\0", " ").rstrip() for row in observation["tty_chars"]]
    return "\n".join(lines).rstrip()
