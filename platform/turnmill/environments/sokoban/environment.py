"""Sokoban: push every box onto a target, told as a map of symbols."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.environments.sokoban.expert import SokobanExpert
from turnmill.environments.sokoban.rooms import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    generate_room,
)
from turnmill.environments.sokoban.text import describe

NAMES = {
    WALL: "wall",
    FLOOR: "empty",
    TARGET: "target",
    BOX_ON_TARGET: "box on target",
    BOX: "box",
    PLAYER: "player",
    PLAYER_ON_TARGET: "player on target",
}
"""What the symbols of the map mean."""

_COLOURS = {
    WALL: (90, 70, 60),
    FLOOR: (230, 225, 215),
    TARGET: (235, 150, 150),
    BOX_ON_TARGET: (120, 170, 90),
    BOX: (190, 140, 70),
    PLAYER: (70, 110, 200),
    PLAYER_ON_TARGET: (140, 100, 190),
}
_CELL_PIXELS = 24

STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0

Side = Annotated[int, Field(ge=4, le=64)]


class SokobanOptions(EnvironmentOptions):
    """Which rooms, and how they are told."""

    size: list[Side] = Field(default=[6, 6], min_length=2, max_length=2)
    """Rows and columns of a room, its outer walls included."""

    num_boxes: int = Field(default=1, ge=1, le=8)
    """Boxes, and targets to push them onto."""

    search_depth: int = Field(default=100, ge=2, le=100_000)
    """Moves that the generator plays backwards; more of them make rooms harder and dearer."""

    max_steps: int = Field(default=100, ge=1)
    """Actions after which an episode ends."""

    view: Literal["map", "spaced", "words"] = "map"
    """`map` tells the room as rows of symbols, `spaced` puts spaces between them, for tokenizers of words; `words`
    tells how far from the player boxes and targets are, and the walls next to them."""


@register
class Sokoban(Environment):
    """Push every box onto a target: GRL's rooms, by the same seeds."""

    name: ClassVar[str] = "sokoban"
    Settings: ClassVar[type[EnvironmentOptions]] = SokobanOptions
    actions = ("up", "down", "left", "right")
    default_action = "up"

    def __init__(self, task: str | None, max_turns: int, options: SokobanOptions) -> None:
        super().__init__(task, max_turns, options)
        self.view, self.max_steps = options.view, options.max_steps
        self.width = options.size[1] + 1
        """Cells from one row to the next: every row ends with a newline."""

        self.moves = {"up": -self.width, "down": self.width, "left": -1, "right": 1}
        self.cells: list[str] = []
        """The map, symbol by symbol, newlines included."""

        self.targets: frozenset[int] = frozenset()
        self.player = 0
        self._num_steps = self._num_placed = 0

    def reset(self, seed: int) -> str:
        """Set up the room of a seed."""
        options = self.options
        room = generate_room(
            seed, size=tuple(options.size), num_boxes=options.num_boxes, search_depth=options.search_depth
        )
        return self.begin(room)

    def begin(self, room: list[str]) -> str:
        """Set up a given room."""
        self.cells = [*"\n".join(room)]
        self.targets = frozenset(
            i for i, cell in enumerate(self.cells) if cell in (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)
        )
        self.player = next(i for i, cell in enumerate(self.cells) if cell in (PLAYER, PLAYER_ON_TARGET))
        self._num_steps, self._num_placed = 0, self.cells.count(BOX_ON_TARGET)
        return self._tell()

    def step(self, action: str) -> StepResult:
        """Walk, or push the box that is in the way."""
        placed, here = self._num_placed, self.player
        self._move(self.moves[action])
        self._num_steps += 1
        solved = self._num_placed == len(self.targets)
        reward = STEP_REWARD + BOX_REWARD * (self._num_placed - placed) + (SOLVED_REWARD if solved else 0.0)
        return StepResult(
            self._tell(),
            reward,
            terminated=solved,
            truncated=not solved and self._num_steps >= self.max_steps,
            info={"success": float(solved), "action_is_effective": float(self.player != here)},
        )

    def instruction_prompt(self) -> str:
        """Explain the map, the rules and the four actions."""
        return (
            "You are the player of a Sokoban puzzle. Push every box onto a target.\n\n"
            f"{self._explain_view()}\n\n"
            f"The actions you can take are: {', '.join(self.actions)}. Each moves you one cell. Moving into a box "
            "pushes it one cell further, if nothing is behind it; a box can neither be pulled nor pushed through a "
            "wall or another box.\n\n"
            "Mind corners: a box that is pushed into one never comes out."
        )

    def _explain_view(self) -> str:
        if self.view == "words":
            return (
                "You are told how many cells from you every box and every target without a box is, and on which sides "
                "you, they and the boxes stand next to a wall."
            )
        symbols = ", ".join(f"{symbol} {name}" for symbol, name in NAMES.items())
        return f"You see a map of the room. Its symbols are: {symbols}."

    def compact_prompt(self) -> str:
        """Name the game."""
        return "goal: push the box onto the target"

    def repair(self, answer: str) -> str:
        """Read the numbers 1 to 4 as up, down, left and right."""
        return dict(zip("1234", self.actions, strict=True)).get(answer, answer)

    def expert(self) -> SokobanExpert:
        """Who plays this well, for a policy to imitate."""
        if self.view == "map":
            raise SettingsError(
                "environment.options.view: must be spaced or words for model.warmStart: its tokenizer would take every "
                "row of a map for a word of its own. Set it to spaced."
            )
        return SokobanExpert(self)

    def render(self) -> np.ndarray:
        """Draw the room, a coloured square for each cell."""
        rows = "".join(self.cells).splitlines()
        picture = np.array([[_COLOURS[symbol] for symbol in row] for row in rows], dtype=np.uint8)
        return picture.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)

    def _move(self, move: int) -> None:
        cells, ahead = self.cells, self.player + move
        if cells[ahead] in (BOX, BOX_ON_TARGET):
            beyond = ahead + move
            if cells[beyond] not in (FLOOR, TARGET):
                return
            self._num_placed += (beyond in self.targets) - (ahead in self.targets)
            cells[beyond] = BOX_ON_TARGET if beyond in self.targets else BOX
        elif cells[ahead] == WALL:
            return
        cells[self.player] = TARGET if self.player in self.targets else FLOOR
        cells[ahead] = PLAYER_ON_TARGET if ahead in self.targets else PLAYER
        self.player = ahead

    def _tell(self) -> str:
        if self.view == "words":
            return describe(self)
        return ("" if self.view == "map" else " ").join(self.cells).replace(" \n ", "\n")
