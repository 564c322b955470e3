"""Sokoban rooms by seed, the same ones that GRL plays.

A room is carved by a random walk, furnished, and then played backwards: a search pulls the boxes off their targets
and keeps the situation that is hardest to undo. Every draw comes in GRL's order from its two generators, so a seed
means the same room in both systems.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from turnmill.core.errors import SettingsError

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = "#_O√XPS"
"""What a cell holds, in the order of GRL's numbers 0 to 6."""

MAX_SEARCHED = 300_000
_TRIES = 4
_TURN_CHANCE = 0.35
_MAX_STROLL = 3
_GO_ON_CHANCE = 0.5
_MAX_SEEDS = 100
_STRIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))
_BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Cells around the walker that become floor."""

_NO_BOX = -1


class _NoRoomError(Exception):
    """This seed's walk left too little room, or no box could be pulled anywhere."""


@dataclass(frozen=True, slots=True)
class _Situation:
    """Where the player and the boxes are while the room is played backwards."""

    player: int
    boxes: tuple[tuple[int, bool], ...]
    """By target, in the order of cells: where its box is, and whether it was ever pulled."""

    pulls: int = 0
    """How often the hand went to another box."""

    last_pulled: int = _NO_BOX

    @property
    def occupied(self) -> frozenset[tuple[int, bool]]:
        """The boxes without regard to which is which."""
        return frozenset(self.boxes)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of a room does not move; cells are numbered row by row."""

    height: int
    width: int
    floor: frozenset[int]
    targets: tuple[int, ...]

    @property
    def moves(self) -> tuple[int, ...]:
        """Up, down, left and right as differences of cell numbers."""
        return (-self.width, self.width, -1, 1)

    def displacement(self, situation: _Situation) -> int:
        """Steps between the boxes and their targets, walls aside."""
        return sum(
            abs(cell // self.width - target // self.width) + abs(cell % self.width - target % self.width)
            for target, (cell, _) in zip(self.targets, situation.boxes, strict=True)
        )


def generate_room(
    seed: int, *, size: tuple[int, int] = (6, 6), num_boxes: int = 1, search_depth: int = 100
) -> list[str]:
    """The room of a seed, one string a row: the same as GRL's of that seed.

    A seed that leads to no solvable room passes on to another one that follows from it.
    """
    _check(size, num_boxes, search_depth)
    for candidate in _seeds(seed):
        try:
            return _generate(candidate, size, num_boxes, search_depth)
        except _NoRoomError:
            continue
    raise SettingsError(
        f"environment.options: no room of {size[0]} by {size[1]} with {num_boxes} boxes was found within "
        f"{_MAX_SEEDS} tries. Make size larger, or numBoxes smaller."
    )


def _check(size: tuple[int, int], num_boxes: int, search_depth: int) -> None:
    if min(size) < 4 or num_boxes < 1 or search_depth < 2:
        raise SettingsError(
            f"environment.options: size {list(size)}, numBoxes {num_boxes} and searchDepth {search_depth} make no "
            "room: sizes are at least 4, boxes at least 1, the depth at least 2."
        )


def _seeds(seed: int) -> Iterator[int]:
    """The seed, then those that take its place one after the other."""
    seed %= 2**32
    for _ in range(_MAX_SEEDS):
        yield seed
        # GRL takes Python's hash of the text, which differs from process to process.
        seed = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")


def _generate(seed: int, size: tuple[int, int], num_boxes: int, search_depth: int) -> list[str]:
    walk, places = random.Random(seed), np.random.RandomState(seed)
    for _ in range(_TRIES):
        floor = _carve(size, walk)
        start, plan = _furnish(size, floor, num_boxes, places)
        found = _play_backwards(plan, start, search_depth)
        if displacement := plan.displacement(found):
            player = _stroll(plan, found, walk, 0.8 if displacement == 1 else 0.5)
            return _draw(plan, found, player)
    raise _NoRoomError


def _carve(size: tuple[int, int], chance: random.Random) -> list[int]:
    """Cells of floor, in the order of their numbers: what a random walk with a broad brush leaves."""
    height, width = size
    carved: set[tuple[int, int]] = set()
    stride = chance.choice(_STRIDES)
    row, column = chance.randint(1, height - 1), chance.randint(1, width - 1)
    for _ in range(int(1.7 * (height + width))):
        if chance.random() < _TURN_CHANCE:
            stride = chance.choice(_STRIDES)
        row = max(min(row + stride[0], height - 2), 1)
        column = max(min(column + stride[1], width - 2), 1)
        carved.update((row + down, column + right) for down, right in chance.choice(_BRUSHES))
    return sorted(row * width + column for row, column in carved if 0 < row < height - 1 and 0 < column < width - 1)


def _furnish(
    size: tuple[int, int], floor: list[int], num_boxes: int, chance: np.random.RandomState
) -> tuple[_Situation, _Plan]:
    """Put the player and the boxes, each on its target, where the draws say."""
    if len(floor) <= num_boxes + 1:
        raise _NoRoomError
    free = list(floor)
    player, *targets = (free.pop(chance.randint(len(free))) for _ in range(1 + num_boxes))
    plan = _Plan(*size, frozenset(floor), tuple(sorted(targets)))
    return _Situation(player, tuple((target, False) for target in plan.targets)), plan


def _play_backwards(plan: _Plan, start: _Situation, depth: int) -> _Situation:
    """The situation that scores highest of all that are found by pulling, deep before broad."""
    best, best_score = start, -1
    seen: set[tuple[int, frozenset[tuple[int, bool]]]] = set()
    waiting = [(start, depth)]
    while waiting:
        situation, left = waiting.pop()
        left -= 1
        if left <= 0 or len(seen) >= MAX_SEARCHED:
            continue
        key = (situation.player, situation.occupied)
        if key in seen:
            continue
        seen.add(key)
        score = _score(plan, situation)
        if score > best_score:
            best, best_score = situation, score
        waiting.extend((_pull(plan, situation, move), left) for move in reversed(plan.moves))
    return best


def _score(plan: _Plan, situation: _Situation) -> int:
    """Hand changes times displacement; nothing while a target is covered."""
    covered = {situation.player, *(cell for cell, _ in situation.boxes)}
    return 0 if covered & set(plan.targets) else situation.pulls * plan.displacement(situation)


def _pull(plan: _Plan, situation: _Situation, move: int) -> _Situation:
    """Step once, and pull along the box behind if there is one."""
    cells = [cell for cell, _ in situation.boxes]
    ahead, behind = situation.player + move, situation.player - move
    if ahead not in plan.floor or ahead in cells:
        return situation
    if behind not in cells:
        return _Situation(ahead, situation.boxes, situation.pulls, situation.last_pulled)
    pulled = cells.index(behind)
    boxes = tuple((situation.player, True) if index == pulled else box for index, box in enumerate(situation.boxes))
    return _Situation(ahead, boxes, situation.pulls + (pulled != situation.last_pulled), pulled)


def _stroll(plan: _Plan, situation: _Situation, random_chance: random.Random, chance: float) -> int:
    """Where the player ends after up to three steps that cross neither a box nor themselves."""
    player = situation.player
    if random_chance.random() > chance:
        return player
    blocked = {player, *(cell for cell, _ in situation.boxes)}
    for step in range(1, _MAX_STROLL + 1):
        open_cells = [player + move for move in plan.moves if player + move in plan.floor - blocked]
        if not open_cells:
            break
        player = random_chance.choice(open_cells)
        blocked.add(player)
        if step < _MAX_STROLL and random_chance.random() > _GO_ON_CHANCE:
            break
    return player


def _draw(plan: _Plan, situation: _Situation, player: int) -> list[str]:
    boxes = {cell for cell, _ in situation.boxes}
    rows = []
    for row in range(plan.height):
        cells = range(row * plan.width, (row + 1) * plan.width)
        rows.append("".join(_symbol(plan, boxes, player, cell) for cell in cells))
    return rows


def _symbol(plan: _Plan, boxes: set[int], player: int, cell: int) -> str:
    on_target = cell in plan.targets
    if cell == player:
        return PLAYER_ON_TARGET if on_target else PLAYER
    if cell in boxes:
        return BOX_ON_TARGET if on_target else BOX
    if on_target:
        return TARGET
    return FLOOR if cell in plan.floor else WALL
