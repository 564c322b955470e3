"""Engine of Baba Is You: a map whose rules are blocks of text that can be pushed."""

from typing import Literal

Kind = Literal["object", "border", "noun", "is", "property", "colour"]
"""`border` is the edge of the map, `object` a thing that rules apply to; the other kinds are text."""

Outcome = Literal["win", "lose"]

OBJECTS = ("baba", "wall", "ball", "key", "door")
PROPERTIES = ("you", "win", "lose", "stop", "push", "pull", "move", "open", "shut")
COLOURS = ("red", "blue", "green")
DIRECTIONS = ("right", "down", "left", "up")


class Thing:
    """A thing on the map: an object, a block of text or a piece of the border."""

    __slots__ = ("colour", "direction", "kind", "name")

    def __init__(self, kind: Kind, name: str, colour: str = "", direction: str = "right") -> None:
        self.kind = kind
        self.name = name
        self.colour = colour
        self.direction = direction

    @property
    def is_text(self) -> bool:
        """True for a block of text."""
        return self.kind not in ("object", "border")

    def __repr__(self) -> str:
        return f"{self.colour} {self.name}".strip() if self.kind == "object" else f"{self.kind} {self.name}"


def text(word: str) -> Thing:
    """Create the text block of a word."""
    if word == "is":
        return Thing("is", word)
    if word in PROPERTIES:
        return Thing("property", word)
    return Thing("colour" if word in COLOURS else "noun", word)


class World:
    """A map of cells, numbered row by row, each with a stack of things; and the rules that its text spells."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells: list[list[Thing]] = [[] for _ in range(width * height)]
        self.steps = {"right": 1, "down": width, "left": -1, "up": -width}
        self.rules: list[str] = []
        """Active rules in words, in the order of the map."""

        self._object_cells: dict[Thing, int] = {}
        """Cell of every object; text and border are not in it."""

        self._text_moved = True
        """True if rules may have changed since they were read."""

        self._property_owners: dict[str, set[tuple[str, str]]] = {}
        """By property: names and colours (or an empty string) of the objects that have it."""

        self._transformations: list[tuple[str, str]] = []
        """Pairs of object names: the first becomes the second."""

    def copy(self) -> "World":
        """Return an independent copy."""
        other = World(self.width, self.height)
        for index, cell in enumerate(self.cells):
            for thing in cell:
                row, column = divmod(index, self.width)
                other.place(Thing(thing.kind, thing.name, thing.colour, thing.direction), column, row)
        other.read_rules()
        return other

    def place(self, thing: Thing, column: int, row: int) -> None:
        """Place a thing on top of a cell."""
        self._put(thing, row * self.width + column)

    def take(self, column: int, row: int) -> Thing:
        """Remove and return the top thing of a cell."""
        thing = self.cells[row * self.width + column][-1]
        self._remove(thing, row * self.width + column)
        return thing

    def has(self, thing: Thing, name: str) -> bool:
        """Return whether an active rule gives a thing the property `name`."""
        owners = self._property_owners.get(name)
        if not owners or thing.kind != "object":
            return False
        return (thing.name, "") in owners or (thing.name, thing.colour) in owners

    def find(self, name: str) -> list[int]:
        """Return the cells of all things with the property `name`, sorted."""
        return sorted(index for index, _ in self._find(name))

    def _find(self, name: str) -> list[tuple[int, Thing]]:
        if not self._property_owners.get(name):
            return []
        return [(index, thing) for thing, index in self._object_cells.items() if self.has(thing, name)]

    def step(self, action: str) -> Outcome | None:
        """Move everything that is YOU, then everything that is MOVE; after `idle` nothing moves.

        Returns the outcome of the level, or None if it goes on.
        """
        if action == "idle":
            return None
        outcome = self._move_you(action)
        self._move_others()
        if self._text_moved:
            self.read_rules()
        self._transform()
        return outcome

    def read_rules(self) -> None:
        """Read the rules from the map: text in a line, from left to right or from top to bottom."""
        self.rules, self._property_owners, self._transformations, self._text_moved = [], {}, [], False
        for index, cell in enumerate(self.cells):
            if cell and cell[-1].kind == "is":
                for step in (1, self.width):
                    self._read_rule(index, step)

    def _read_rule(self, index: int, step: int) -> None:
        subject, predicate = self._top(index - step), self._top(index + step)
        if subject is None or predicate is None or subject.kind != "noun":
            return
        before = self._top(index - 2 * step)
        colour = before.name if before is not None and before.kind == "colour" else ""
        if predicate.kind == "property":
            self._property_owners.setdefault(predicate.name, set()).add((subject.name, colour))
        elif predicate.kind == "noun":
            self._transformations.append((subject.name, predicate.name))
        else:
            return
        self.rules.append(f"{colour} {subject.name} is {predicate.name}".strip())

    def _top(self, index: int) -> Thing | None:
        # There is no text on the border, so only the cell of a colour can be beyond it.
        cell = self.cells[index] if 0 <= index < len(self.cells) else None
        return cell[-1] if cell else None

    def _move_you(self, direction: str) -> Outcome | None:
        outcome: Outcome | None = None
        for _, thing in sorted(self._find("you"), key=lambda found: found[0]):
            # A thing that was pushed by another YOU moves on from its new cell; one that was removed does not move.
            if (index := self._object_cells.get(thing, -1)) < 0:
                continue
            met = self._move(thing, index, direction)
            if met is not None and outcome != "win":
                outcome = "win" if self.has(met, "win") else "lose" if self.has(met, "lose") else outcome
        return outcome

    def _move_others(self) -> None:
        for _, thing in sorted(self._find("move"), key=lambda found: found[0]):
            index = self._object_cells.get(thing, -1)
            if index >= 0 and not self.has(thing, "you"):
                self._move(thing, index, thing.direction)

    def _move(self, thing: Thing, index: int, direction: str) -> Thing | None:
        """Move a thing by one cell if possible; return the thing that it met there, or its own cell's top if it stayed.

        PUSH things and text ahead are pushed, OPEN and SHUT things remove each other, and a PULL thing behind follows.
        """
        step = self.steps[direction]
        ahead = index + step
        thing.direction = direction
        if self._open_shut(thing, index, ahead):
            return None
        met = self._top(ahead)
        if met is not None and (met.is_text or self.has(met, "push")):
            self._move(met, ahead, direction)
            met = self._top(ahead)
        if met is not None and self._is_solid(met):
            return self._top(index)
        self._remove(thing, index)
        self._put(thing, ahead)
        follower = self._top(index - step)
        if follower is not None and self.has(follower, "pull"):
            self._move(follower, index - step, direction)
        return met

    def _is_solid(self, thing: Thing) -> bool:
        return thing.kind != "object" or self.has(thing, "stop")

    def _open_shut(self, thing: Thing, index: int, ahead: int) -> bool:
        """Remove a thing and the thing ahead if one is OPEN and the other SHUT; return whether they are."""
        met = self._top(ahead)
        if met is None or not any(
            self.has(thing, one) and self.has(met, other) for one, other in (("open", "shut"), ("shut", "open"))
        ):
            return False
        self._remove(thing, index)
        self._remove(met, ahead)
        return True

    def _put(self, thing: Thing, index: int) -> None:
        self.cells[index].append(thing)
        if thing.kind == "object":
            self._object_cells[thing] = index
        else:
            self._text_moved = True

    def _remove(self, thing: Thing, index: int) -> None:
        self.cells[index].remove(thing)
        self._object_cells.pop(thing, None)

    def _transform(self) -> None:
        for name, other in self._transformations:
            for thing in self._object_cells:
                if thing.name == name:
                    thing.name = other
