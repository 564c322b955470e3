"""A small Tetris that ends with the first line: GRL's board, pieces and rewards, told as a map."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from turnmill.core.errors import SettingsError
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

MOVES = {"left": (-1, 0), "right": (1, 0), "down": (0, 1)}
"""Actions by columns to the right and rows down."""

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

    view: Literal["map", "spaced"] = "map"
    """`map` tells the board as rows of symbols, `spaced` puts spaces between them, for tokenizers of words."""


@register
class Tetris(Environment):
    """Fill a line before the pieces pile up to the top."""

    name: ClassVar[str] = "tetris"
    Settings: ClassVar[type[EnvironmentOptions]] = TetrisOptions
    actions = tuple(MOVES)
    default_action = "down"

    def __init__(self, task: str | None, max_turns: int, options: TetrisOptions) -> None:
        super().__init__(task, max_turns, options)
        self.width, self.height, self.view = options.width, options.height, options.view
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
        right, down = MOVES[action]
        effective = self.is_free(right, down)
        if effective:
            self.piece.column += right
            self.piece.row += down
        if self.is_free(0, 1):
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

    def expert(self) -> "TetrisExpert":
        """Who plays this well, for a policy to imitate."""
        if self.view != "spaced":
            raise SettingsError(
                "environment.options.view: must be spaced for model.warmStart: its tokenizer would take every row of "
                "a map for a word of its own. Set it to spaced."
            )
        return TetrisExpert(self)

    def render(self) -> np.ndarray:
        """Draw the board, a coloured square for each cell."""
        rows = self._tell().replace(" ", "").splitlines()
        picture = np.array([[_COLOURS[cell] for cell in row] for row in rows], dtype=np.uint8)
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

    def is_free(self, right: int, down: int) -> bool:
        """Whether there is room for the falling piece, if it were moved that much."""
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
        return "\n".join(rows if self.view == "map" else map(" ".join, rows))


class TetrisExpert:
    """Knows the way of the falling piece to where it fits best."""

    def __init__(self, environment: Tetris) -> None:
        self.environment = environment
        self._way: list[str] = []

    def advise(self, last_action: str | None) -> str | None:
        """The first action on the shortest way to the best place within reach."""
        self._way = self._best_way()
        return self._way[0] if self._way else None

    def thought(self) -> str:
        """How far the place is."""
        across = self._way.count("right") - self._way.count("left")
        where = "below" if across == 0 else f"{abs(across)} {'right' if across > 0 else 'left'}"
        return f"the place is {where}"

    def phrases(self) -> Iterator[str]:
        """Every word of a prompt or an answer, each in its place in a line."""
        yield self.environment.compact_prompt()
        yield "the place is below"
        for first in (EMPTY, FILLED, FALLING):
            yield f"{first} {EMPTY} {FILLED} {FALLING}"
        for number in range(1, self.environment.width):
            yield f"the place is {number} right\nthe place is {number} left"
        for action in self.environment.actions:
            yield f" {action}"

    def _best_way(self) -> list[str]:
        environment = self.environment
        ways: dict[tuple[int, int], list[str]] = {(0, 0): []}
        waiting = deque([(0, 0)])
        best: tuple[int, list[str]] | None = None
        while waiting:
            right, down = waiting.popleft()
            for action, (across, below) in MOVES.items():
                moved = (right + across, down + below)
                if not environment.is_free(*moved) or moved in ways:
                    continue
                ways[moved] = [*ways[right, down], action]
                # A piece comes to rest as soon as something is under it.
                if environment.is_free(moved[0], moved[1] + 1):
                    waiting.append(moved)
                elif best is None or self._worth(*moved) > best[0]:
                    best = (self._worth(*moved), ways[moved])
        return best[1] if best is not None else ["down"]

    def _worth(self, right: int, down: int) -> int:
        """Full rows count most, then depth."""
        environment = self.environment
        cells = [cell for cell in environment.piece.cells(right, down) if cell[1] >= 0]
        full = sum(
            all(
                environment.rows[row][column] == FILLED or (column, row) in cells for column in range(environment.width)
            )
            for row in {row for _, row in cells}
        )
        return 1000 * full + sum(row for _, row in cells)


def _info(effective: bool, lines: int) -> dict[str, float]:
    return {"success": float(lines > 0), "action_is_effective": float(effective)}
