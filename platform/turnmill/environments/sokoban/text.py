"""A room in words: how far from the player everything is, and which ways walls bar."""

from typing import TYPE_CHECKING

from turnmill.environments.sokoban.rooms import BOX, BOX_ON_TARGET, WALL

if TYPE_CHECKING:
    from turnmill.environments.sokoban.environment import Sokoban


def describe(room: "Sokoban") -> str:
    """The player, every box that is not in its place and every target without a box, each with the walls next to it.

    Of the map's walls only those are told.
    """
    boxes = [cell for cell, symbol in enumerate(room.cells) if symbol == BOX]
    lines = [f"player{_walls(room, room.player)}"]
    lines += [f"box {where(room, box)}{_walls(room, box)}" for box in boxes]
    lines += [f"target {where(room, target)}{_walls(room, target)}" for target in free_targets(room)]
    return "\n".join(lines)


def free_targets(room: "Sokoban") -> list[int]:
    """Targets without a box."""
    return [cell for cell in sorted(room.targets) if room.cells[cell] != BOX_ON_TARGET]


def where(room: "Sokoban", cell: int) -> str:
    """The way from the player to a cell, walls aside."""
    down, right = offset(room, cell)
    parts = [(abs(down), "down" if down > 0 else "up"), (abs(right), "right" if right > 0 else "left")]
    return " ".join(f"{number} {direction}" for number, direction in parts if number) or "here"


def offset(room: "Sokoban", cell: int) -> tuple[int, int]:
    """Rows down and columns right from the player to a cell."""
    return cell // room.width - room.player // room.width, cell % room.width - room.player % room.width


def _walls(room: "Sokoban", cell: int) -> str:
    barred = [direction for direction, move in room.moves.items() if room.cells[cell + move] == WALL]
    return " ".join([" wall", *barred]) if barred else ""
