"""NetHack and what is built of it: the screen as text, keys by name."""

import random
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

_DIRECTIONS = {
    "N": "north", "E": "east", "S": "south", "W": "west",
    "NE": "northeast", "SE": "southeast", "SW": "southwest", "NW": "northwest",
}  # fmt: skip
_LEFT_OUT = frozenset(
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
"""Keys that leave the game, or only tell of the program."""

_MORE = "--More--"
_MAX_PAGES = 50


class DungeonOptions(EnvironmentOptions):
    """How the game is played."""

    skip_more: bool = False
    """Turn the pages of long messages without asking; the last one is told."""

    max_steps: int = Field(default=100_000, ge=1)
    """Keys after which the game ends."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's own, such as `character`."""


class Dungeon(Environment):
    """A game on NetHack's engine."""

    Settings: ClassVar[type[EnvironmentOptions]] = DungeonOptions
    goal: ClassVar[str] = "Get as far as possible."

    def __init__(self, task: str | None, max_turns: int, options: DungeonOptions) -> None:
        super().__init__(task, max_turns, options)
        self._game = self.make_game()
        keys = list(self._game.unwrapped.actions)
        self._indices: dict[str, int] = {}
        for index, key in enumerate(keys):
            if (name := name_of(key)) not in _LEFT_OUT:
                self._indices.setdefault(name, index)
        self._by_character = {chr(int(key)): name_of(key) for key in keys if 32 < int(key) < 127}
        self.actions = tuple(self._indices)
        self.default_action = "wait" if "wait" in self._indices else self.actions[0]

    def make_game(self) -> Any:
        """The environment, behind gymnasium's interface."""
        raise NotImplementedError

    def reset(self, seed: int) -> str:
        """Begin the game of a seed; it repeats, for NetHack may not draw anew on the way."""
        # MiniHack draws from a list of levels with the generator that all share.
        random.seed(seed)
        self._game.unwrapped.seed(core=seed, disp=seed, reseed=False)
        seen, _ = self._game.reset()
        return _screen(seen)

    def step(self, action: str) -> StepResult:
        """Press a key."""
        seen, reward, terminated, truncated, _ = self._game.step(self._indices[action])
        pages = 0
        while (
            self.options.skip_more and _MORE in _screen(seen) and not (terminated or truncated) and pages < _MAX_PAGES
        ):
            seen, more, terminated, truncated, _ = self._game.step(self._indices["more"])
            reward, pages = reward + more, pages + 1
        return StepResult(_screen(seen), float(reward), bool(terminated), bool(truncated))

    def instruction_prompt(self) -> str:
        """Explain the screen and the keys."""
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
        """State the goal."""
        return f"goal: {self.goal}"

    def match_action(self, answer: str) -> str | None:
        """A key by its name, or a single character as it is typed."""
        answer = answer.strip()
        if len(answer) == 1 and answer in self._by_character:
            answer = self._by_character[answer]
        return super().match_action(answer.replace("_", " "))

    def close(self) -> None:
        """End the game."""
        self._game.close()


@register
class NetHack(Dungeon):
    """NetHack itself; its challenge, too, follows a seed here."""

    name: ClassVar[str] = "nethack"
    goal: ClassVar[str] = "Go down into the dungeon, and get as far as possible."

    def make_game(self) -> Any:
        """NLE's environment of the task's name."""
        nle = import_extra("nle.nethack", extra="nethack")
        gymnasium = import_extra("gymnasium", extra="nethack")
        import_extra("nle.env", extra="nethack")
        arguments = {"max_episode_steps": self.options.max_steps, **self.options.arguments}
        task = self.task or "NetHackChallenge-v0"
        if task == "NetHackChallenge-v0":
            # As NLE has it, but for its refusal of seeds.
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


def make_registered(gymnasium: Any, task: str, prefix: str, arguments: dict[str, Any]) -> Any:
    """The environment of an id that begins with `prefix`."""
    known = sorted(name for name in gymnasium.registry if name.startswith(prefix))
    if task not in known:
        raise SettingsError(f"environment.task: there is no {task!r}. Known: {', '.join(known)}.")
    try:
        return gymnasium.make(
            task, disable_env_checker=True, observation_keys=("tty_chars", "glyphs", "blstats"), **arguments
        )
    except TypeError as error:
        raise SettingsError(f"environment.options.arguments: {task} does not take them: {error}.") from error
    except ImportError as error:
        raise SettingsError(f"environment.task: {task} needs more than the package: {error}.") from error


def name_of(key: Any) -> str:
    """What an action is called: `north`, `far north`, `eat`, `7`."""
    kind, name = type(key).__name__, key.name
    if kind.startswith("Compass"):
        return f"far {_DIRECTIONS[name]}" if kind.endswith("Longer") else _DIRECTIONS[name]
    return str(name).removeprefix("NUM_").lower()


def _screen(seen: dict[str, np.ndarray]) -> str:
    lines = [bytes(row).decode("latin-1").replace("\0", " ").rstrip() for row in seen["tty_chars"]]
    return "\n".join(lines).rstrip()
