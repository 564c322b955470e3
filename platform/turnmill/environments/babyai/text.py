"""Description of a BabyAI agent's 7x7 view in words."""

from dataclasses import dataclass

import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, OBJECT_TO_IDX
from minigrid.core.world_object import WorldObj

_TRANSPARENT = (OBJECT_TO_IDX["unseen"], OBJECT_TO_IDX["empty"])
_WALL = OBJECT_TO_IDX["wall"]
_DOOR = OBJECT_TO_IDX["door"]
_FIRST_OBJECT = _DOOR
DOOR_STATES = ("open", "closed", "locked")
"""States of doors, in minigrid's order."""

_DIRECTIONS = (("forward", 0, -1), ("left", -1, 0), ("right", 1, 0))


@dataclass(frozen=True, slots=True)
class VisibleObject:
    """An object in view; `right` and `forward` count steps, and `right` is negative to the left."""

    name: str
    right: int
    forward: int

    @property
    def distance(self) -> int:
        """Manhattan distance from the agent in steps."""
        return abs(self.right) + self.forward

    @property
    def position(self) -> str:
        """Position in words, such as `2 steps left and 1 step forward`."""
        side = "right" if self.right > 0 else "left"
        parts = [format_steps(abs(self.right), side), format_steps(self.forward, "forward")]
        return " and ".join(part for part in parts if part)


def format_steps(number: int, direction: str) -> str:
    """Return `1 step left`, `3 steps left`, or an empty string for no step."""
    if number == 0:
        return ""
    return f"{number} step{'' if number == 1 else 's'} {direction}"


def describe(view: np.ndarray, carrying: WorldObj | None = None) -> str:
    """Describe the object that is carried, the nearest walls and every object in view, one per line.

    `view` has shape (columns, rows, 3): columns from left to right, rows from far to near, and per cell
    the indices of type, colour and state. The agent stands in the middle of the nearest row.
    """
    lines = [] if carrying is None else [f"You carry a {carrying.color} {carrying.type}"]
    lines += [f"a wall {format_steps(distance, direction)}" for direction, distance in visible_walls(view)]
    lines += [f"a {thing.name} {thing.position}" for thing in visible_objects(view)]
    return "\n".join(lines)


def visible_walls(view: np.ndarray) -> list[tuple[str, int]]:
    """Return the directions in which a wall is the first thing ahead, each with the distance in steps."""
    agent_column, agent_row = _agent_cell(view)
    kinds = view[:, :, 0].tolist()
    walls = []
    for direction, across, down in _DIRECTIONS:
        column, row, distance = agent_column + across, agent_row + down, 1
        while 0 <= column < view.shape[0] and 0 <= row < view.shape[1]:
            kind = kinds[column][row]
            if kind not in _TRANSPARENT:
                if kind == _WALL:
                    walls.append((direction, distance))
                break
            column, row, distance = column + across, row + down, distance + 1
    return walls


def visible_objects(view: np.ndarray) -> list[VisibleObject]:
    """Return all objects in view but walls and floor, column by column from the left, far before near."""
    agent_column, agent_row = _agent_cell(view)
    # Lists, because reading single numbers from an array is slow.
    return [
        VisibleObject(_name(kind, colour, state), column - agent_column, agent_row - row)
        for column, cells in enumerate(view.tolist())
        for row, (kind, colour, state) in enumerate(cells)
        # The agent's own cell shows what it carries.
        if kind >= _FIRST_OBJECT and (column, row) != (agent_column, agent_row)
    ]


def _agent_cell(view: np.ndarray) -> tuple[int, int]:
    return view.shape[0] // 2, view.shape[1] - 1


def _name(kind: int, colour: int, state: int) -> str:
    name = f"{IDX_TO_COLOR[colour]} {IDX_TO_OBJECT[kind]}"
    return f"{DOOR_STATES[state]} {name}" if kind == _DOOR else name
