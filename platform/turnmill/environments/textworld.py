"""TextWorld: text adventures, from game files or generated from the seed."""

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.extras import import_extra
from turnmill.environments.registry import register

TASKS = ("treasure_hunter", "coin_collector", "the_cooking_game")
"""Kinds of games that can be generated."""

_COOKING = {
    "recipe_seed": 0, "recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False, "drop": False,
    "split": "train",
}  # fmt: skip
"""Settings of the cooking game: one ingredient to find and to prepare."""
_MAX_COMMAND_CHARACTERS = 200


class TextWorldOptions(EnvironmentOptions):
    """Source of the games, and length of episodes."""

    games: str | None = None
    """Folder of game files, `.z8` or `.ulx`, with a subfolder per task; if omitted, games are generated and cached."""

    num_games: int = Field(default=100, ge=1)
    """Games that are generated; a seed selects one of them, modulo this number."""

    level: int = Field(default=5, ge=1, le=300)
    """Difficulty of generated games: rooms of `coin_collector`, level 1 to 30 of `treasure_hunter`."""

    max_steps: int = Field(default=100, ge=1)
    """Commands after which an episode ends."""


@register
class TextWorld(Environment):
    """TextWorld (Côté et al., 2018): each game is an episode, and the points that a command earns are its reward."""

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
                f"environment.task: games of {task!r} cannot be generated. Choose one of {', '.join(TASKS)}, or set "
                "environment.options.games to a folder with games."
            )
        self._game: Any = None
        self._objective = ""
        self._num_steps = self._score = 0

    def prepare(self, seed: int) -> None:
        """Generate the game of a seed, which takes seconds."""
        self._file(seed)

    def reset(self, seed: int) -> str:
        """Start the game of a seed."""
        self.close()
        infos = self._textworld.EnvInfos(objective=True, score=True, max_score=True, won=True, lost=True)
        self._game = self._textworld.start(str(self._file(seed)), infos)
        state = self._game.reset()
        self._objective = str(state.objective or "")
        self._num_steps = self._score = 0
        return self._observation(state.feedback)

    def step(self, action: str) -> StepResult:
        """Execute a command; the points that it earns are its reward."""
        state, _, done = self._game.step(action)
        self._num_steps += 1
        score = int(state.score or 0)
        reward, self._score = float(score - self._score), score
        won = bool(state.won)
        return StepResult(
            self._observation(state.feedback),
            reward,
            terminated=bool(done),
            truncated=not done and self._num_steps >= self.options.max_steps,
            info={"success": float(won), "score": float(score), "max_score": float(state.max_score or 0)},
        )

    def instruction_prompt(self) -> str:
        """Return the prompt with the objective and the commands."""
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
        """Return the first line of the answer: the game itself answers commands that it does not understand."""
        command = " ".join(answer.partition("\n")[0].split())
        return command if command and command.isprintable() and len(command) <= _MAX_COMMAND_CHARACTERS else None

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _observation(self, feedback: str) -> str:
        # The first feedback repeats the objective after an ASCII-art title.
        return str(feedback).rpartition(self._objective)[2].strip() if self._objective else str(feedback).strip()

    def _file(self, seed: int) -> Path:
        if self._files is not None:
            return self._files[seed % len(self._files)]
        number = seed % self.options.num_games
        return _generated_game(self._textworld, str(self.task), self.options.level, number)


def _game_files(folder: str, task: str) -> list[Path]:
    files = sorted(path for path in Path(folder, task).rglob("*") if path.suffix in (".z8", ".ulx"))
    if not files:
        raise SettingsError(
            f"environment.options.games: {str(Path(folder, task))!r} contains no game. Put .z8 or .ulx files there, "
            "with the .json file of each."
        )
    return files


def _generated_game(textworld: Any, task: str, level: int, number: int) -> Path:
    """Return the file of a generated game; it is generated once and cached, atomically."""
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
        compiled = Path(textworld.generator.compile_game(game, options))
        compiled.with_suffix(".json").replace(file.with_suffix(".json"))
        compiled.replace(file)
    return file
