"""A small Tetris that ends with the first line: GRL's board, pieces and rewards, told as a map."""

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

EMPTY, FILLED, FALLING = "_#X"
STEP_REWARD = -0.1
LINE_REWARD = 10.0

_DOT = ((0, 0),)
_UPRIGHT = ((0, 0), (0, -1))
_FLAT = ((0, 0), (-1, 0))
_SQUARE = ((0, 0), (-1, 0), (0, -1), (-1, -1))
SHAPES = {1: (_DOT,), 2: (_UPRIGHT, _FLAT), 3: (_UPRIGHT, _FLAT, _SQUARE)}
"""Pieces by `boxType`: each cell's columns to the right of the anchor and rows below it."""

_COLOURS = {EMPTY: (30, 30, 40), FILLED: (150, 150, 160), FALLING: (90, 160, 230)}
_CELL_PIXELS = 24


@dataclass(slots=True)
class _Piece:
    shape: tuple[tuple[int, int], ...]
    column: int
    row: int = 0

    def cells(self, right: int = 0, down: int = 0) -> list[tuple[int, int]]:
        """Column and row of every cell, if the piece were moved that much."""
        return [(self.column + right + across, self.row + down + below) for across, below in self.shape]


class TetrisOptions(EnvironmentOptions):
    """The board and its pieces."""

    width: int = Field(default=4, ge=2, le=32)
    """Columns of the board."""

    height: int = Field(default=4, ge=2, le=32)
    """Rows of the board."""

    box_type: Literal[1, 2, 3] = 1
    """Pieces: `1` has single cells, `2` dominoes upright and flat, `3` squares as well."""


@register
class Tetris(Environment):
    """Fill a line before the pieces pile up to the top."""

    name: ClassVar[str] = "tetris"
    Settings: ClassVar[type[EnvironmentOptions]] = TetrisOptions
    actions = ("left", "right", "down")
    default_action = "down"

    def __init__(self, task: str | None, max_turns: int, options: TetrisOptions) -> None:
        super().__init__(task, max_turns, options)
        self.width, self.height = options.width, options.height
        self.shapes = SHAPES[options.box_type]
        self.rows: list[list[str]] = []
        """What has come to rest, from the top row down."""

        self.piece = _Piece(_DOT, 0)
        self._chance = random.Random()
        self._shape_counts: list[int] = []

    def reset(self, seed: int) -> str:
        """Empty the board; the seed decides which pieces come, and where."""
        self._chance = random.Random(seed)
        self._shape_counts = [0] * len(self.shapes)
        self.rows = [[EMPTY] * self.width for _ in range(self.height)]
        self.piece = self._next_piece()
        return self._tell()

    def step(self, action: str) -> StepResult:
        """Move the piece one cell; one that can fall no further comes to rest."""
        right, down = {"left": (-1, 0), "right": (1, 0), "down": (0, 1)}[action]
        effective = self._is_free(right, down)
        if effective:
            self.piece.column += right
            self.piece.row += down
        if self._is_free(0, 1):
            return StepResult(self._tell(), STEP_REWARD, info=_info(effective, lines=0))
        lines = self._settle()
        lost = lines == 0 and FILLED in self.rows[0]
        # Where it ends the board is told with the last piece still in colour.
        told = self._tell() if lines or lost else None
        if told is None:
            self.piece = self._next_piece()
            told = self._tell()
        return StepResult(
            told, STEP_REWARD + LINE_REWARD * lines, terminated=lost or lines > 0, info=_info(effective, lines)
        )

    def instruction_prompt(self) -> str:
        """Explain the map, the goal and the three actions."""
        return (
            f"You play a small Tetris on a board of {self.height} rows and {self.width} columns. Fill one row "
            "completely, and you win; let the blocks reach the top row, and you lose.\n\n"
            f"You see a map of the board: {EMPTY} is empty, {FILLED} is filled, {FALLING} is the falling block.\n\n"
            f"The actions you can take are: {', '.join(self.actions)}. Each moves the falling block one cell; it falls "
            "by no other means, and comes to rest as soon as something is under it."
        )

    def compact_prompt(self) -> str:
        """State the goal."""
        return "goal: fill one row"

    def repair(self, answer: str) -> str:
        """Read the numbers 0 to 2 as left, right and down."""
        return dict(zip("012", self.actions, strict=True)).get(answer, answer)

    def render(self) -> np.ndarray:
        """Draw the board, a coloured square for each cell."""
        picture = np.array([[_COLOURS[cell] for cell in row] for row in self._tell().splitlines()], dtype=np.uint8)
        return picture.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)

    def _next_piece(self) -> _Piece:
        """Drawn in GRL's order: rarer shapes are likelier, and the column follows."""
        most = max(self._shape_counts)
        weights = [5 + most - count for count in self._shape_counts]
        drawn = self._chance.randint(1, sum(weights))
        index = 0
        while drawn > weights[index]:
            drawn -= weights[index]
            index += 1
        self._shape_counts[index] += 1
        shape = self.shapes[index]
        return _Piece(shape, self._chance.randint(1 if (-1, 0) in shape else 0, self.width - 1))

    def _is_free(self, right: int, down: int) -> bool:
        for column, row in self.piece.cells(right, down):
            # Above the board there is room, but no way around its sides.
            if not 0 <= column < self.width or row >= self.height or (row >= 0 and self.rows[row][column] == FILLED):
                return False
        return True

    def _settle(self) -> int:
        """Leave the piece where it is; the number of lines that this filled, which are taken away."""
        for column, row in self.piece.cells():
            if row >= 0:
                self.rows[row][column] = FILLED
        kept = [row for row in self.rows if EMPTY in row]
        lines = self.height - len(kept)
        self.rows = [*([EMPTY] * self.width for _ in range(lines)), *kept]
        return lines

    def _tell(self) -> str:
        rows = ["".join(row) for row in self.rows]
        for column, row in self.piece.cells():
            if row >= 0:
                rows[row] = f"{rows[row][:column]}{FALLING}{rows[row][column + 1 :]}"
        return "\n".join(rows)


def _info(effective: bool, lines: int) -> dict[str, float]:
    return {"success": float(lines > 0), "action_is_effective": float(effective)}
