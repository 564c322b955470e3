"""State of a Sokoban room, and the rules by which the player moves in it."""

from collections.abc import Sequence

from turnmill.environments.sokoban.rooms import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
)

ACTIONS = ("up", "down", "left", "right")


class Board:
    """Cells of a room, numbered row by row; a newline after each row counts as a cell, too."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.cells: list[str] = []
        """Symbols of all cells, newlines included; empty until a room is loaded."""

        self.targets: frozenset[int] = frozenset()
        self.player = 0
        self.num_boxes_on_target = 0
        self._set_size(num_rows, num_columns)

    def load(self, room: Sequence[str]) -> None:
        """Set up a room, given as one string per row."""
        self._set_size(len(room), len(room[0]))
        self.cells = [*"\n".join(room)]
        self.targets = frozenset(
            i for i, cell in enumerate(self.cells) if cell in (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)
        )
        self.player = next(i for i, cell in enumerate(self.cells) if cell in (PLAYER, PLAYER_ON_TARGET))
        self.num_boxes_on_target = self.cells.count(BOX_ON_TARGET)

    def move(self, action: str) -> None:
        """Move the player one cell and push the box ahead, unless a wall or a second box is in the way."""
        move = self.moves[action]
        cells, ahead = self.cells, self.player + move
        if cells[ahead] in (BOX, BOX_ON_TARGET):
            beyond = ahead + move
            if cells[beyond] not in (FLOOR, TARGET):
                return
            self.num_boxes_on_target += (beyond in self.targets) - (ahead in self.targets)
            cells[beyond] = BOX_ON_TARGET if beyond in self.targets else BOX
        elif cells[ahead] == WALL:
            return
        cells[self.player] = TARGET if self.player in self.targets else FLOOR
        cells[ahead] = PLAYER_ON_TARGET if ahead in self.targets else PLAYER
        self.player = ahead

    @property
    def is_solved(self) -> bool:
        """True if every target has a box."""
        return self.num_boxes_on_target == len(self.targets)

    @property
    def boxes(self) -> list[int]:
        """Cells of all boxes, in order."""
        return [i for i, cell in enumerate(self.cells) if cell in (BOX, BOX_ON_TARGET)]

    @property
    def free_targets(self) -> list[int]:
        """Cells of the targets without a box, in order."""
        return [cell for cell in sorted(self.targets) if self.cells[cell] != BOX_ON_TARGET]

    def offset(self, cell: int) -> tuple[int, int]:
        """Return the rows down and the columns to the right from the player to a cell."""
        row, column = divmod(cell, self.stride)
        player_row, player_column = divmod(self.player, self.stride)
        return row - player_row, column - player_column

    def _set_size(self, num_rows: int, num_columns: int) -> None:
        self.num_rows, self.num_columns = num_rows, num_columns
        self.stride = num_columns + 1
        """Difference of cell numbers between one row and the next."""

        self.moves = dict(zip(ACTIONS, (-self.stride, self.stride, -1, 1), strict=True))
        """Actions as differences of cell numbers."""
