"""The forty tasks of BabaIsAI: one or two rooms, with rules to break or to make."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from turnmill.environments.babaisai.engine import COLOURS, Thing, World, text

NOUNS = ("ball", "key", "door")

Cell = tuple[int, int]
"""Column and row."""


def _area(left: int, top: int, width: int, height: int) -> list[Cell]:
    return [(column, row) for row in range(top, top + height) for column in range(left, left + width)]


@dataclass(frozen=True, slots=True)
class Distractors:
    """Parts of a level that are not needed for its solution."""

    thing: bool = False
    """A second object."""

    block: str = ""
    """Text block of a noun: that of the second object (`other`), or of an object that is absent (`irrelevant`)."""

    rule: bool = False
    """An active rule by which an absent object wins."""


_DISTRACTORS = {
    "": Distractors(),
    "-distr_obj": Distractors(thing=True),
    "-distr_rule": Distractors(block="other"),
    "-distr_obj_rule": Distractors(thing=True, block="other"),
    "-distr_obj-irrelevant_rule": Distractors(thing=True, block="irrelevant"),
}
_WITH_A_RULE = Distractors(thing=True, block="other", rule=True)


@dataclass(frozen=True, slots=True)
class Room:
    """A level of one room, 8 by 8."""

    distractors: Distractors
    win_is_broken: bool

    def build(self, rng: random.Random) -> World:
        """Generate a level."""
        builder = _Builder(8, 8, rng)
        goal, other, third = builder.subjects
        builder.write("baba is you", 1, 6)
        win = builder.write(f"{goal.name} is win", 1, 1)
        if self.win_is_broken:
            builder.displace(win[0], _area(2, 2, 4, 4))
        if self.distractors.block:
            # Against a wall, so that no other rule can be made of it.
            edges = [(c, r) for c, r in _area(4, 1, 3, 6) if r in (1, 6) or c == 6]
            builder.put(text(third.name if self.distractors.block == "irrelevant" else other.name), edges)
        builder.put(Thing("object", "baba", "white"), _area(1, 2, 6, 5))
        builder.put(goal, _area(1, 2, 6, 5))
        if self.distractors.thing:
            builder.put(other, _area(1, 2, 6, 5))
        return builder.finish()


@dataclass(frozen=True, slots=True)
class TwoRooms:
    """A level of two rooms, 13 by 9, with a wall of objects between them."""

    distractors: Distractors
    goal_side: str
    """Room of the objects: `left`, where the agent starts, `right`, or `any`."""

    stop_is_broken: bool = False
    win_is_broken: bool = False

    def build(self, rng: random.Random) -> World:
        """Generate a level."""
        builder = _Builder(13, 9, rng, wall_column=6)
        goal, other, third = builder.subjects
        builder.write("baba is you", 1, 7)
        stop = builder.write("wall is stop", 1, 2)
        win = builder.write(f"{goal.name} is win", 9, 1)
        if self.distractors.rule:
            builder.write(f"{third.name} is win", 9, 4)
        self._put_block(builder, other.name, third.name)
        if self.stop_is_broken:
            builder.displace(rng.choice(stop[1:]), _area(2, 3, 4, 3))
        if self.win_is_broken:
            builder.displace(win[0], _area(7, 3, 4, 3))
        builder.put(Thing("object", "baba", "white"), _area(2, 3, 4, 3))
        sides = {"left": _area(1, 1, 4, 7), "right": _area(7, 2, 4, 6), "any": _area(1, 2, 11, 6)}
        builder.put(goal, sides[self.goal_side])
        if self.distractors.thing:
            builder.put(other, sides[self.goal_side])
        return builder.finish()

    def _put_block(self, builder: "_Builder", other: str, third: str) -> None:
        if self.distractors.block == "irrelevant":
            builder.put(text(third), _area(7, 3, 4, 3))
        elif self.distractors.block:
            # If the object is on the map, too, its text must be unusable: against a wall.
            edges = [*_area(11, 2, 1, 5), *_area(8, 7, 4, 1)]
            builder.put(text(other), edges if self.distractors.thing else _area(7, 3, 4, 3))


@dataclass(frozen=True, slots=True)
class MakeYou:
    """Two rooms: the agent has to become an object in the other room."""

    win_is_broken: bool = False

    def build(self, rng: random.Random) -> World:
        """Generate a level."""
        builder = _Builder(13, 9, rng, wall_column=6)
        goal, other, _ = builder.subjects
        builder.write("baba is you", 1, 6)
        builder.write("wall is stop", 1, 1)
        win = builder.write(f"{goal.name} is win", 9, 1)
        builder.put(text(other.name), _area(2, 3, 3, 3))
        if self.win_is_broken:
            builder.displace(win[0], _area(8, 3, 3, 3))
        builder.put(Thing("object", "baba", "white"), _area(2, 3, 3, 3))
        builder.put(goal, _area(7, 2, 4, 6))
        builder.put(other, _area(7, 2, 4, 6))
        return builder.finish()


@dataclass(frozen=True, slots=True)
class MakeWallWin:
    """Two rooms: the agent has to make the rule that the wall between them wins."""

    def build(self, rng: random.Random) -> World:
        """Generate a level."""
        builder = _Builder(13, 9, rng, wall_column=6)
        goal, other, third = builder.subjects
        builder.write("baba is you", 1, 7)
        builder.write("wall is stop", 2, 2)
        win = builder.write(f"{goal.name} is win", 9, 1)
        builder.put(text(third.name), _area(8, 3, 3, 3))
        builder.displace(win[0], [*_area(11, 2, 1, 5), *_area(8, 7, 4, 1)])
        builder.put(Thing("object", "baba", "white"), _area(2, 3, 3, 3))
        builder.put(goal, _area(7, 2, 4, 6))
        builder.put(other, _area(7, 2, 4, 6))
        return builder.finish()


class _Builder:
    """Builder of a map: border, wall between the rooms, and three objects to choose from."""

    def __init__(self, width: int, height: int, rng: random.Random, *, wall_column: int | None = None) -> None:
        self.world = World(width, height)
        self.rng = rng
        names = rng.sample(NOUNS, 3)
        self.subjects = [Thing("object", name, rng.choice(COLOURS)) for name in names]
        for column, row in product(range(width), range(height)):
            if column in (0, width - 1) or row in (0, height - 1):
                self.world.place(Thing("border", "border"), column, row)
            elif column == wall_column:
                self.world.place(Thing("object", "wall", "grey"), column, row)

    def write(self, rule: str, column: int, row: int) -> list[Cell]:
        """Place the text blocks of a rule from left to right, and return their cells."""
        cells = [(column + index, row) for index in range(len(rule.split()))]
        for word, cell in zip(rule.split(), cells, strict=True):
            self.world.place(text(word), *cell)
        return cells

    def put(self, thing: Thing, cells: Sequence[Cell]) -> None:
        """Place a thing on a random free cell among `cells`."""
        self.world.place(thing, *self.rng.choice([cell for cell in cells if not self._at(cell)]))

    def displace(self, cell: Cell, cells: Sequence[Cell]) -> None:
        """Move the top thing of a cell to a random free cell among `cells`."""
        self.put(self.world.take(*cell), cells)

    def finish(self) -> World:
        """Return the map, with its rules read."""
        self.world.read_rules()
        return self.world

    def _at(self, cell: Cell) -> list[Thing]:
        return self.world.cells[cell[1] * self.world.width + cell[0]]


def _levels() -> "dict[str, Room | TwoRooms | MakeYou | MakeWallWin]":
    levels: dict[str, Room | TwoRooms | MakeYou | MakeWallWin] = {}
    for suffix, distractors in _DISTRACTORS.items():
        levels[f"goto_win{suffix}"] = Room(distractors, win_is_broken=False)
        levels[f"make_win{suffix}"] = Room(distractors, win_is_broken=True)
        levels[f"two_room-goto_win{suffix}"] = TwoRooms(distractors, "left", stop_is_broken=True)
        levels[f"two_room-break_stop-goto_win{suffix}"] = TwoRooms(distractors, "right")
        levels[f"two_room-maybe_break_stop-goto_win{suffix}"] = TwoRooms(distractors, "any")
        levels[f"two_room-make_win{suffix}"] = TwoRooms(distractors, "left", stop_is_broken=True, win_is_broken=True)
        levels[f"two_room-break_stop-make_win{suffix}"] = TwoRooms(distractors, "right", win_is_broken=True)
    levels["two_room-goto_win-distr_win_rule"] = TwoRooms(_WITH_A_RULE, "left", stop_is_broken=True)
    levels["two_room-make_win-distr_win_rule"] = TwoRooms(_WITH_A_RULE, "left", stop_is_broken=True, win_is_broken=True)
    levels["two_room-make_you"] = MakeYou()
    levels["two_room-make_you-make_win"] = MakeYou(win_is_broken=True)
    levels["two_room-make_wall_win"] = MakeWallWin()
    return dict(sorted(levels.items()))


LEVELS = _levels()
"""Tasks by their names in the original, without the prefix `env/`."""
