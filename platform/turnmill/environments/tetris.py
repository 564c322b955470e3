"""A small Tetris that ends with the first full line, with GRL's board, pieces and rewards."""

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
"""Shapes by `boxType`: the cells of each as (columns right, rows down) from its anchor."""

MOVES = {"left": (-1, 0), "right": (1, 0), "down": (0, 1)}
"""Actions as (columns right, rows down)."""

_COLOURS = {EMPTY: (30, 30, 40), FILLED: (150, 150, 160), FALLING: (90, 160, 230)}
_CELL_PIXELS = 24


@dataclass(slots=True)
class _Piece:
    shape: tuple[tuple[int, int], ...]
    column: int
    row: int = 0

    def cells(self, right: int = 0, down: int = 0) -> list[tuple[int, int]]:
        """Return column and row of every cell after a move by `right` and `down`."""
        return [(self.column + right + x, self.row + down + y) for x, y in self.shape]


class TetrisOptions(EnvironmentOptions):
    """Size of the board, its pieces, and form of observations."""

    width: int = Field(default=4, ge=2, le=32)
    """Columns of the board."""

    height: int = Field(default=4, ge=2, le=32)
    """Rows of the board."""

    box_type: Literal[1, 2, 3] = 1
    """Pieces: `1` has single cells, `2` dominoes upright and flat, `3` squares as well."""

    view: Literal["map", "spaced"] = "map"
    """Form of observations: `map` shows the board as rows of symbols; `spaced` separates the symbols with spaces, for
    word tokenizers."""


@register
class Tetris(Environment):
    """GRL's Tetris: fill a line before the pieces reach the top row."""

    name: ClassVar[str] = "tetris"
    tasks: ClassVar[tuple[str, ...] | None] = ()
    Settings: ClassVar[type[EnvironmentOptions]] = TetrisOptions
    actions = tuple(MOVES)
    default_action = "down"

    def __init__(self, task: str | None, max_turns: int, options: TetrisOptions) -> None:
        super().__init__(task, max_turns, options)
        self.width, self.height, self.view = options.width, options.height, options.view
        self.shapes = SHAPES[options.box_type]
        self.rows: list[list[str]] = []
        """Settled cells, from the top row down."""

        self.piece = _Piece(_DOT, 0)
        self._rng = random.Random()
        self._shape_counts: list[int] = []

    def reset(self, seed: int) -> str:
        """Start with an empty board; the seed determines the pieces and their columns."""
        self._rng = random.Random(seed)
        self._shape_counts = [0] * len(self.shapes)
        self.rows = [[EMPTY] * self.width for _ in range(self.height)]
        self.piece = self._next_piece()
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Move the piece one cell; a piece that cannot fall any further settles."""
        right, down = MOVES[action]
        effective = self.is_free(right, down)
        if effective:
            self.piece.column += right
            self.piece.row += down
        if self.is_free(0, 1):
            return StepResult(self._observation(), STEP_REWARD, info=_info(effective, lines=0))
        lines = self._settle()
        terminated = lines > 0 or FILLED in self.rows[0]
        # The last observation still shows the last piece as falling.
        if not terminated:
            self.piece = self._next_piece()
        return StepResult(
            self._observation(), STEP_REWARD + LINE_REWARD * lines, terminated=terminated, info=_info(effective, lines)
        )

    def instruction_prompt(self) -> str:
        """Return the prompt with the map, the goal and the three actions."""
        return (
            f"You play a small Tetris on a board of {self.height} rows and {self.width} columns. Fill one row "
            "completely, and you win; let the blocks reach the top row, and you lose.\n\n"
            f"You see a map of the board: {EMPTY} is empty, {FILLED} is filled, {FALLING} is the falling block.\n\n"
            f"The actions you can take are: {', '.join(self.actions)}. Each moves the falling block one cell; it falls "
            "by no other means, and comes to rest as soon as something is under it."
        )

    def compact_prompt(self) -> str:
        """Return the goal."""
        return "goal: fill one row"

    def repair(self, answer: str) -> str:
        """Replace the numbers 0 to 2 by left, right and down."""
        return dict(zip("012", self.actions, strict=True)).get(answer, answer)

    def expert(self) -> "TetrisExpert":
        """Return an expert for warm starts. Raises SettingsError for the view `map`."""
        if self.view != "spaced":
            raise SettingsError(
                "environment.options.view: must be spaced for model.warmStart: its tokenizer would take every row of "
                "a map for a word of its own. Set it to spaced."
            )
        return TetrisExpert(self)

    def render(self) -> np.ndarray:
        """Draw the board, a coloured square for each cell."""
        rows = self._observation().replace(" ", "").splitlines()
        picture = np.array([[_COLOURS[cell] for cell in row] for row in rows], dtype=np.uint8)
        return picture.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)

    def _next_piece(self) -> _Piece:
        """Draw a shape, rarer ones with a higher probability, and then its column, in GRL's order."""
        most = max(self._shape_counts)
        weights = [5 + most - count for count in self._shape_counts]
        drawn = self._rng.randint(1, sum(weights))
        index = 0
        while drawn > weights[index]:
            drawn -= weights[index]
            index += 1
        self._shape_counts[index] += 1
        shape = self.shapes[index]
        return _Piece(shape, self._rng.randint(1 if (-1, 0) in shape else 0, self.width - 1))

    def is_free(self, right: int, down: int) -> bool:
        """Return whether the falling piece can be moved by `right` and `down`."""
        for column, row in self.piece.cells(right, down):
            # Cells above the board are free, cells beside it are not.
            if not 0 <= column < self.width or row >= self.height or (row >= 0 and self.rows[row][column] == FILLED):
                return False
        return True

    def _settle(self) -> int:
        """Fix the piece on the board, remove full lines and return their number."""
        for column, row in self.piece.cells():
            if row >= 0:
                self.rows[row][column] = FILLED
        kept = [row for row in self.rows if EMPTY in row]
        lines = self.height - len(kept)
        self.rows = [*([EMPTY] * self.width for _ in range(lines)), *kept]
        return lines

    def _observation(self) -> str:
        rows = ["".join(row) for row in self.rows]
        for column, row in self.piece.cells():
            if row >= 0:
                rows[row] = f"{rows[row][:column]}{FALLING}{rows[row][column + 1 :]}"
        return "\n".join(rows if self.view == "map" else map(" ".join, rows))


class TetrisExpert:
    """Moves the falling piece to the best reachable position."""

    def __init__(self, environment: Tetris) -> None:
        self.environment = environment
        self._path: list[str] = []

    def advise(self, last_action: str | None) -> str | None:
        """Return the first action of the shortest path to the best reachable position."""
        self._path = self._best_path()
        return self._path[0] if self._path else None

    def thought(self) -> str:
        """Return the horizontal distance of the best position."""
        right = self._path.count("right") - self._path.count("left")
        position = "below" if right == 0 else f"{abs(right)} {'right' if right > 0 else 'left'}"
        return f"the place is {position}"

    def phrases(self) -> Iterator[str]:
        """Yield texts that contain every word of prompts, observations and answers, with the space before it."""
        yield self.environment.compact_prompt()
        yield "the place is below"
        for first in (EMPTY, FILLED, FALLING):
            yield f"{first} {EMPTY} {FILLED} {FALLING}"
        for number in range(1, self.environment.width):
            yield f"the place is {number} right\nthe place is {number} left"
        for action in self.environment.actions:
            yield f" {action}"

    def _best_path(self) -> list[str]:
        environment = self.environment
        paths: dict[tuple[int, int], list[str]] = {(0, 0): []}
        queue = deque([(0, 0)])
        best: tuple[int, list[str]] | None = None
        while queue:
            right, down = queue.popleft()
            for action, (x, y) in MOVES.items():
                moved = (right + x, down + y)
                if not environment.is_free(*moved) or moved in paths:
                    continue
                paths[moved] = [*paths[right, down], action]
                # A piece settles as soon as something is under it.
                if environment.is_free(moved[0], moved[1] + 1):
                    queue.append(moved)
                elif best is None or self._score(*moved) > best[0]:
                    best = (self._score(*moved), paths[moved])
        return best[1] if best is not None else ["down"]

    def _score(self, right: int, down: int) -> int:
        """Score a position: full rows count most, then depth."""
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
