"""TextWorld: adventures in text, from game files or made by the seed."""

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

TASKS = ("treasure_hunter", "coin_collector", "the_cooking_game")
"""Kinds of games that can be made."""

_COOKING = {
    "recipe_seed": 0, "recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False, "drop": False,
    "split": "train",
}  # fmt: skip
"""Skills that the cooking game asks for: one ingredient to be found and a meal to be made of it."""
_MAX_COMMAND_CHARACTERS = 200


class TextWorldOptions(EnvironmentOptions):
    """Where the games are."""

    games: str | None = None
    """Folder of game files, `.z8` or `.ulx`, in folders named like the tasks; left out, games are made and kept."""

    num_games: int = Field(default=100, ge=1)
    """Games that are made; seeds count through them."""

    level: int = Field(default=5, ge=1, le=300)
    """How hard the games are that are made: rooms of `coin_collector`, level 1 to 30 of `treasure_hunter`."""

    max_steps: int = Field(default=100, ge=1)
    """Commands after which an episode ends."""


@register
class TextWorld(Environment):
    """A game file is an episode; points are rewards."""

    name: ClassVar[str] = "textworld"
    Settings: ClassVar[type[EnvironmentOptions]] = TextWorldOptions
    actions = ()
    default_action = "look"

    def __init__(self, task: str | None, max_turns: int, options: TextWorldOptions) -> None:
        task = task or "treasure_hunter"
        super().__init__(task, max_turns, options)
        self._textworld = import_extra("textworld", extra="textworld")
        self._files = _game_files(options.games, task) if options.games is not None else None
        if self._files is None and task not in TASKS:
            raise SettingsError(
                f"environment.task: games of {task!r} cannot be made. Take one of {', '.join(TASKS)}, or give "
                "environment.options.games a folder that has some."
            )
        self._game: Any = None
        self._objective = ""
        self._num_steps = self._score = 0

    def prepare(self, seed: int) -> None:
        """Make the game of a seed, which takes seconds."""
        self._file(seed)

    def reset(self, seed: int) -> str:
        """Begin the game of a seed."""
        self.close()
        wanted = self._textworld.EnvInfos(objective=True, score=True, max_score=True, won=True, lost=True)
        self._game = self._textworld.start(str(self._file(seed)), wanted)
        state = self._game.reset()
        self._objective = str(state.objective or "")
        self._num_steps = self._score = 0
        return self._told(state.feedback)

    def step(self, action: str) -> StepResult:
        """Give a command; what it brings in points is its reward."""
        state, _, done = self._game.step(action)
        self._num_steps += 1
        score = int(state.score or 0)
        reward, self._score = float(score - self._score), score
        won = bool(state.won)
        return StepResult(
            self._told(state.feedback),
            reward,
            terminated=bool(done),
            truncated=not done and self._num_steps >= self.options.max_steps,
            info={"success": float(won), "score": float(score), "max_score": float(state.max_score or 0)},
        )

    def instruction_prompt(self) -> str:
        """Explain commands, and the objective."""
        return (
            f"You play an adventure in text. {self._objective}\n\n"
            "Commands are short sentences: look, inventory, goal, go north (east, south, west), open X, close X, "
            "take X, drop X, take X from Y, put X on Y, insert X into Y, unlock X with Y, lock X with Y, examine X, "
            "eat X, cook X with Y, slice, chop or dice X with Y, prepare meal.\n\n"
            "Tips:\n"
            "- Name things exactly as you read them.\n"
            "- A door or a container must be opened before use, and unlocked before it is opened.\n"
            "- Take every key you see."
        ).replace(" \n", "\n")

    def match_action(self, answer: str) -> str | None:
        """The first line, whatever it says: the game itself answers what it does not understand."""
        command = " ".join(answer.partition("\n")[0].split())
        return command if command and command.isprintable() and len(command) <= _MAX_COMMAND_CHARACTERS else None

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _told(self, feedback: str) -> str:
        # The opening repeats the objective after a title of letters.
        return str(feedback).rpartition(self._objective)[2].strip() if self._objective else str(feedback).strip()

    def _file(self, seed: int) -> Path:
        if self._files is not None:
            return self._files[seed % len(self._files)]
        number = seed % self.options.num_games
        return _made_game(self._textworld, str(self.task), self.options.level, number)


def _game_files(folder: str, task: str) -> list[Path]:
    files = sorted(path for path in Path(folder, task).rglob("*") if path.suffix in (".z8", ".ulx"))
    if not files:
        raise SettingsError(
            f"environment.options.games: {str(Path(folder, task))!r} holds no game. Put .z8 or .ulx files there, with "
            "the .json that belongs to each."
        )
    return files


def _made_game(textworld: Any, task: str, level: int, number: int) -> Path:
    """A game file of our own making, whole or not at all; made once and kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnmill" / "textworld"
    file = folder / f"{task}-{level}-{number}.z8"
    if not file.exists():
        from textworld import challenges  # type: ignore[import-not-found]

        folder.mkdir(parents=True, exist_ok=True)
        options = textworld.GameOptions()
        options.seeds = number
        options.path = str(folder / f".{os.getpid()}-{file.name}")
        options.file_ext = ".z8"
        settings = _COOKING if task == "the_cooking_game" else {"level": level}
        game = getattr(challenges, "cooking" if task == "the_cooking_game" else task).make(settings, options)
        made = Path(textworld.generator.compile_game(game, options))
        made.with_suffix(".json").replace(file.with_suffix(".json"))
        made.replace(file)
    return file
