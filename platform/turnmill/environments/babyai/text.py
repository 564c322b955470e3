"""The 7x7 view of a BabyAI agent in words."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, OBJECT_TO_IDX

_SEE_THROUGH = (OBJECT_TO_IDX["unseen"], OBJECT_TO_IDX["empty"])
_WALL = OBJECT_TO_IDX["wall"]
_DOOR = OBJECT_TO_IDX["door"]
_FIRST_OBJECT = _DOOR
_DOOR_STATES = ("open", "closed", "locked")
_LOOKS = (("forward", 0, -1), ("left", -1, 0), ("right", 1, 0))


@dataclass(frozen=True, slots=True)
class SeenObject:
    """A thing in view; `right` and `forward` count steps, and `right` is negative to the left."""

    name: str
    right: int
    forward: int

    @property
    def distance(self) -> int:
        """Steps to it, around no obstacle."""
        return abs(self.right) + self.forward

    @property
    def where(self) -> str:
        """The steps in words, such as `2 steps left and 1 step forward`."""
        side = "right" if self.right > 0 else "left"
        parts = [steps(abs(self.right), side), steps(self.forward, "forward")]
        return " and ".join(part for part in parts if part)


def steps(number: int, direction: str) -> str:
    """`1 step left`, `3 steps left`, or nothing for no step."""
    if number == 0:
        return ""
    return f"{number} step{'' if number == 1 else 's'} {direction}"


def describe(view: np.ndarray, carrying: Any = None) -> str:
    """Tell what is carried, the nearest walls and every object in view, one to a line.

    `view` has shape (columns, rows, 3): columns from left to right, rows from far to near, and per cell
    the indices of type, colour and state. The agent stands in the middle of the nearest row.
    """
    lines = [] if carrying is None else [f"You carry a {carrying.color} {carrying.type}"]
    lines += [f"a wall {steps(distance, direction)}" for direction, distance in seen_walls(view)]
    lines += [f"a {thing.name} {thing.where}" for thing in seen_objects(view)]
    return "\n".join(lines)


def seen_walls(view: np.ndarray) -> list[tuple[str, int]]:
    """Directions in which a wall is the first thing the agent meets, and its distance."""
    agent_column, agent_row = _agent_cell(view)
    kinds = view[:, :, 0].tolist()
    walls = []
    for direction, across, down in _LOOKS:
        column, row, distance = agent_column + across, agent_row + down, 1
        while 0 <= column < view.shape[0] and 0 <= row < view.shape[1]:
            kind = kinds[column][row]
            if kind not in _SEE_THROUGH:
                if kind == _WALL:
                    walls.append((direction, distance))
                break
            column, row, distance = column + across, row + down, distance + 1
    return walls


def seen_objects(view: np.ndarray) -> list[SeenObject]:
    """Everything in view but walls and floor, column by column from the left, far before near."""
    agent_column, agent_row = _agent_cell(view)
    # Plain lists: asking an array for one number takes as long as for all of them.
    return [
        SeenObject(_name(kind, colour, state), column - agent_column, agent_row - row)
        for column, cells in enumerate(view.tolist())
        for row, (kind, colour, state) in enumerate(cells)
        # The agent's own cell shows what it carries.
        if kind >= _FIRST_OBJECT and (column, row) != (agent_column, agent_row)
    ]


def _agent_cell(view: np.ndarray) -> tuple[int, int]:
    return view.shape[0] // 2, view.shape[1] - 1


def _name(kind: int, colour: int, state: int) -> str:
    name = f"{IDX_TO_COLOR[colour]} {IDX_TO_OBJECT[kind]}"
    return f"{_DOOR_STATES[state]} {name}" if kind == _DOOR else name
