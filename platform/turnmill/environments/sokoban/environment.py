"""Sokoban: push every box onto a target."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.environments.sokoban.board import ACTIONS, Board
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

SYMBOL_NAMES = {
    WALL: "wall",
    FLOOR: "empty",
    TARGET: "target",
    BOX_ON_TARGET: "box on target",
    BOX: "box",
    PLAYER: "player",
    PLAYER_ON_TARGET: "player on target",
}
"""Meanings of the symbols of the map, in the order of GRL's numbers."""

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
    """Size of the rooms, and the form of observations."""

    size: list[Side] = Field(default=[6, 6], min_length=2, max_length=2)
    """Rows and columns of a room, its outer walls included."""

    num_boxes: int = Field(default=1, ge=1, le=8)
    """Boxes, and targets to push them onto."""

    search_depth: int = Field(default=100, ge=2, le=100_000)
    """Depth of the generator's search backwards from the solution; a larger one makes rooms harder and slower to
    generate."""

    max_steps: int = Field(default=100, ge=1)
    """Actions after which an episode ends."""

    view: Literal["map", "spaced", "words"] = "map"
    """Form of observations: `map` shows the room as rows of symbols; `spaced` separates the symbols with spaces, for
    word tokenizers; `words` gives the distances from the player to boxes and targets, and the walls next to them."""


@register
class Sokoban(Environment):
    """Sokoban with the rooms that GRL generates from the same seeds."""

    name: ClassVar[str] = "sokoban"
    tasks: ClassVar[tuple[str, ...] | None] = ()
    Settings: ClassVar[type[EnvironmentOptions]] = SokobanOptions
    actions = ACTIONS
    default_action = "up"

    def __init__(self, task: str | None, max_turns: int, options: SokobanOptions) -> None:
        super().__init__(task, max_turns, options)
        self.view, self.max_steps = options.view, options.max_steps
        self.board = Board(options.size[0], options.size[1])
        self._num_steps = 0

    def reset(self, seed: int) -> str:
        """Start in the room that is generated from the seed."""
        options = self.options
        room = generate_room(
            seed, size=tuple(options.size), num_boxes=options.num_boxes, search_depth=options.search_depth
        )
        return self.start_in(room)

    def start_in(self, room: list[str]) -> str:
        """Start an episode in a given room, one string per row."""
        self.board.load(room)
        self._num_steps = 0
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Move the player one cell; a box in the way is pushed."""
        board = self.board
        player_before, num_before = board.player, board.num_boxes_on_target
        board.move(action)
        self._num_steps += 1
        solved = board.is_solved
        reward = STEP_REWARD + BOX_REWARD * (board.num_boxes_on_target - num_before) + SOLVED_REWARD * solved
        return StepResult(
            self._observation(),
            reward,
            terminated=solved,
            truncated=not solved and self._num_steps >= self.max_steps,
            info={"success": float(solved), "action_is_effective": float(board.player != player_before)},
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
        symbols = ", ".join(f"{symbol} {name}" for symbol, name in SYMBOL_NAMES.items())
        return f"You see a map of the room. Its symbols are: {symbols}."

    def compact_prompt(self) -> str:
        """Return the goal."""
        return "goal: push the box onto the target"

    def repair(self, answer: str) -> str:
        """Read the numbers 1 to 4 as up, down, left and right."""
        return dict(zip("1234", self.actions, strict=True)).get(answer, answer)

    def expert(self) -> SokobanExpert:
        """Return an expert for warm starts. Raises SettingsError for the view `map`."""
        if self.view == "map":
            raise SettingsError(
                "environment.options.view: must be spaced or words for model.warmStart: its tokenizer would take every "
                "row of a map for a word of its own. Set it to spaced."
            )
        return SokobanExpert(self.board, self.compact_prompt())

    def render(self) -> np.ndarray:
        """Draw the room, a coloured square for each cell."""
        rows = "".join(self.board.cells).splitlines()
        picture = np.array([[_COLOURS[symbol] for symbol in row] for row in rows], dtype=np.uint8)
        return picture.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)

    def _observation(self) -> str:
        if self.view == "words":
            return describe(self.board)
        return ("" if self.view == "map" else " ").join(self.board.cells).replace(" \n ", "\n")
