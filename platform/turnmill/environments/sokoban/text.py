"""Description of a Sokoban room in words: distances from the player, and walls next to things."""

from turnmill.environments.sokoban.board import Board
from turnmill.environments.sokoban.rooms import BOX, WALL


def describe(board: Board) -> str:
    """Describe the player, every box that is not on a target and every target without a box, one per line.

    Each line names the walls next to the thing; other walls are not mentioned.
    """
    boxes = [cell for cell in board.boxes if board.cells[cell] == BOX]
    lines = [f"player{_adjacent_walls(board, board.player)}"]
    lines += [f"box {relative_position(board, box)}{_adjacent_walls(board, box)}" for box in boxes]
    lines += [
        f"target {relative_position(board, target)}{_adjacent_walls(board, target)}" for target in board.free_targets
    ]
    return "\n".join(lines)


def relative_position(board: Board, cell: int) -> str:
    """Return the position of a cell relative to the player, such as `2 down 1 left`, or `here`."""
    down, right = board.offset(cell)
    parts = [(abs(down), "down" if down > 0 else "up"), (abs(right), "right" if right > 0 else "left")]
    return " ".join(f"{number} {direction}" for number, direction in parts if number) or "here"


def _adjacent_walls(board: Board, cell: int) -> str:
    directions = [direction for direction, move in board.moves.items() if board.cells[cell + move] == WALL]
    return " ".join([" wall", *directions]) if directions else ""
