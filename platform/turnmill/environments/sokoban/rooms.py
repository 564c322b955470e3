"""Generator of Sokoban rooms, a port of GRL's: the same seed generates the same room in both systems.

A random walk carves the floor, player and boxes are placed, and a depth-first search plays backwards from the
solution: it pulls the boxes off their targets and keeps the state that is hardest to solve. Random numbers are drawn in
GRL's order from its two generators.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from turnmill.core.errors import SettingsError

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = "#_O√XPS"
"""Symbols of cells, in the order of GRL's numbers 0 to 6."""

MAX_STATES = 300_000
"""States that one search may visit."""

_MAX_TRIES = 4
_TURN_PROBABILITY = 0.35
_MAX_WALK_STEPS = 3
_WALK_ON_PROBABILITY = 0.5
_MAX_SEEDS = 100
_STRIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))
_BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Cells around the walker that become floor, as (rows down, columns right)."""

_NO_BOX = -1


class _NoRoomError(Exception):
    """The seed's random walk carved too little floor, or no box could be pulled."""


@dataclass(frozen=True, slots=True)
class _State:
    """Positions of the player and the boxes while the room is played backwards."""

    player: int
    boxes: tuple[tuple[int, bool], ...]
    """By target, in the order of cells: the cell of its box, and whether the box was ever pulled."""

    num_box_changes: int = 0
    """Number of times that another box was pulled than the one before."""

    last_pulled: int = _NO_BOX

    @property
    def occupied(self) -> frozenset[tuple[int, bool]]:
        """The boxes as a set: it is the same for states in which boxes are exchanged."""
        return frozenset(self.boxes)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Floor and targets of a room; cells are numbered row by row."""

    height: int
    width: int
    floor: frozenset[int]
    targets: tuple[int, ...]

    @property
    def moves(self) -> tuple[int, ...]:
        """Up, down, left and right as differences of cell numbers."""
        return (-self.width, self.width, -1, 1)

    def displacement(self, state: _State) -> int:
        """Sum of the Manhattan distances between boxes and their targets."""
        return sum(
            abs(cell // self.width - target // self.width) + abs(cell % self.width - target % self.width)
            for target, (cell, _) in zip(self.targets, state.boxes, strict=True)
        )


def generate_room(
    seed: int, *, size: tuple[int, int] = (6, 6), num_boxes: int = 1, search_depth: int = 100
) -> list[str]:
    """Generate the room of a seed, one string of symbols per row; GRL generates the same one.

    `size` is (rows, columns), outer walls included; `search_depth` bounds the search backwards from the solution. A
    seed without a solvable room is replaced by one that is derived from it. Raises SettingsError if the parameters are
    out of range or no room is found for 100 seeds.
    """
    _check(size, num_boxes, search_depth)
    for candidate in _seeds(seed):
        try:
            return _generate(candidate, size, num_boxes, search_depth)
        except _NoRoomError:
            continue
    raise SettingsError(
        f"environment.options: no room of {size[0]} by {size[1]} with {num_boxes} boxes was found for "
        f"{_MAX_SEEDS} seeds. Make size larger, or numBoxes smaller."
    )


def _check(size: tuple[int, int], num_boxes: int, search_depth: int) -> None:
    if min(size) < 4 or num_boxes < 1 or search_depth < 2:
        raise SettingsError(
            f"environment.options: no room can have size {list(size)}, numBoxes {num_boxes} and searchDepth "
            f"{search_depth}: sizes must be at least 4, numBoxes at least 1, searchDepth at least 2."
        )


def _seeds(seed: int) -> Iterator[int]:
    """Yield the seed, then the seeds that replace it in turn."""
    seed %= 2**32
    for _ in range(_MAX_SEEDS):
        yield seed
        # GRL uses Python's hash of the text, which differs between processes.
        seed = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")


def _generate(seed: int, size: tuple[int, int], num_boxes: int, search_depth: int) -> list[str]:
    walk_random, placement_random = random.Random(seed), np.random.RandomState(seed)
    for _ in range(_MAX_TRIES):
        floor = _carve_floor(size, walk_random)
        solved, layout = _place_player_and_boxes(size, floor, num_boxes, placement_random)
        found = _search_backwards(layout, solved, search_depth)
        if displacement := layout.displacement(found):
            player = _walk_player(layout, found, walk_random, probability=0.8 if displacement == 1 else 0.5)
            return _draw(layout, found, player)
    raise _NoRoomError


def _carve_floor(size: tuple[int, int], rng: random.Random) -> list[int]:
    """Return the cells of floor, sorted: those that a random walk with a brush of several cells covers."""
    height, width = size
    carved: set[tuple[int, int]] = set()
    stride = rng.choice(_STRIDES)
    row, column = rng.randint(1, height - 1), rng.randint(1, width - 1)
    for _ in range(int(1.7 * (height + width))):
        if rng.random() < _TURN_PROBABILITY:
            stride = rng.choice(_STRIDES)
        row = max(min(row + stride[0], height - 2), 1)
        column = max(min(column + stride[1], width - 2), 1)
        carved.update((row + down, column + right) for down, right in rng.choice(_BRUSHES))
    return sorted(row * width + column for row, column in carved if 0 < row < height - 1 and 0 < column < width - 1)


def _place_player_and_boxes(
    size: tuple[int, int], floor: list[int], num_boxes: int, rng: np.random.RandomState
) -> tuple[_State, _Layout]:
    """Draw the cells of the player and the targets; every box begins on its target."""
    if len(floor) <= num_boxes + 1:
        raise _NoRoomError
    free = list(floor)
    player, *targets = (free.pop(rng.randint(len(free))) for _ in range(1 + num_boxes))
    layout = _Layout(*size, frozenset(floor), tuple(sorted(targets)))
    return _State(player, tuple((target, False) for target in layout.targets)), layout


def _search_backwards(layout: _Layout, solved: _State, depth: int) -> _State:
    """Return the state with the highest score among those that a depth-first search reaches by pulling boxes."""
    best, best_score = solved, -1
    seen: set[tuple[int, frozenset[tuple[int, bool]]]] = set()
    stack = [(solved, depth)]
    while stack:
        state, depth_left = stack.pop()
        depth_left -= 1
        if depth_left <= 0 or len(seen) >= MAX_STATES:
            continue
        key = (state.player, state.occupied)
        if key in seen:
            continue
        seen.add(key)
        score = _score(layout, state)
        if score > best_score:
            best, best_score = state, score
        stack.extend((_pull(layout, state, move), depth_left) for move in reversed(layout.moves))
    return best


def _score(layout: _Layout, state: _State) -> int:
    """Box changes times displacement; 0 while the player or a box is on a target."""
    covered = {state.player, *(cell for cell, _ in state.boxes)}
    return 0 if covered & set(layout.targets) else state.num_box_changes * layout.displacement(state)


def _pull(layout: _Layout, state: _State, move: int) -> _State:
    """Move the player one cell, and the box behind him, if any, with him."""
    cells = [cell for cell, _ in state.boxes]
    ahead, behind = state.player + move, state.player - move
    if ahead not in layout.floor or ahead in cells:
        return state
    if behind not in cells:
        return _State(ahead, state.boxes, state.num_box_changes, state.last_pulled)
    pulled = cells.index(behind)
    boxes = tuple((state.player, True) if index == pulled else box for index, box in enumerate(state.boxes))
    return _State(ahead, boxes, state.num_box_changes + (pulled != state.last_pulled), pulled)


def _walk_player(layout: _Layout, state: _State, rng: random.Random, *, probability: float) -> int:
    """Return the player's cell after, with the given probability, a walk of up to three steps to new free cells."""
    player = state.player
    if rng.random() > probability:
        return player
    blocked = {player, *(cell for cell, _ in state.boxes)}
    for step in range(1, _MAX_WALK_STEPS + 1):
        free = [player + move for move in layout.moves if player + move in layout.floor - blocked]
        if not free:
            break
        player = rng.choice(free)
        blocked.add(player)
        if step < _MAX_WALK_STEPS and rng.random() > _WALK_ON_PROBABILITY:
            break
    return player


def _draw(layout: _Layout, state: _State, player: int) -> list[str]:
    boxes = {cell for cell, _ in state.boxes}
    rows = []
    for row in range(layout.height):
        cells = range(row * layout.width, (row + 1) * layout.width)
        rows.append("".join(_symbol(layout, boxes, player, cell) for cell in cells))
    return rows


def _symbol(layout: _Layout, boxes: set[int], player: int, cell: int) -> str:
    on_target = cell in layout.targets
    if cell == player:
        return PLAYER_ON_TARGET if on_target else PLAYER
    if cell in boxes:
        return BOX_ON_TARGET if on_target else BOX
    if on_target:
        return TARGET
    return FLOOR if cell in layout.floor else WALL
