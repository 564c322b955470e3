"""A world whose rules are blocks of text that can be pushed about."""

from typing import Literal

Kind = Literal["object", "border", "noun", "is", "property", "colour"]
"""`border` is the edge of the map, `object` what rules speak of, the rest is text."""

Outcome = Literal["win", "lose"]

OBJECTS = ("baba", "wall", "ball", "key", "door")
PROPERTIES = ("you", "win", "lose", "stop", "push", "pull", "move", "open", "shut")
COLOURS = ("red", "blue", "green")
DIRECTIONS = ("right", "down", "left", "up")


class Thing:
    """Something on the map."""

    __slots__ = ("colour", "direction", "kind", "name")

    def __init__(self, kind: Kind, name: str, colour: str = "", direction: str = "right") -> None:
        self.kind = kind
        self.name = name
        self.colour = colour
        self.direction = direction

    @property
    def is_text(self) -> bool:
        """Whether it is a block of text."""
        return self.kind not in ("object", "border")

    def __repr__(self) -> str:
        return f"{self.colour} {self.name}".strip() if self.kind == "object" else f"{self.kind} {self.name}"


def text(word: str) -> Thing:
    """The block of text of a word."""
    if word == "is":
        return Thing("is", word)
    if word in PROPERTIES:
        return Thing("property", word)
    return Thing("colour" if word in COLOURS else "noun", word)


class World:
    """A map of cells, each a stack of things, and the rules that its text makes."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells: list[list[Thing]] = [[] for _ in range(width * height)]
        self.steps = {"right": 1, "down": width, "left": -1, "up": -width}
        self.rules: list[str] = []
        """Active rules as they read, in the order of the map."""

        self._places: dict[Thing, int] = {}
        """Where every object is, text and border aside."""

        self._text_moved = True
        """Whether rules may have changed since they were read."""

        self._holders: dict[str, set[tuple[str, str]]] = {}
        """By property: names and colours (or none) of the objects that have it."""

        self._becoming: list[tuple[str, str]] = []
        """Objects that are to be other objects."""

    def copy(self) -> "World":
        """The same situation, to be played on by itself."""
        other = World(self.width, self.height)
        for place, cell in enumerate(self.cells):
            for thing in cell:
                row, column = divmod(place, self.width)
                other.place(Thing(thing.kind, thing.name, thing.colour, thing.direction), column, row)
        other.read_rules()
        return other

    def place(self, thing: Thing, column: int, row: int) -> None:
        """Put a thing on top of a cell."""
        self._put(thing, row * self.width + column)

    def take(self, column: int, row: int) -> Thing:
        """Take away what is on top of a cell."""
        thing = self.cells[row * self.width + column][-1]
        self._remove(thing, row * self.width + column)
        return thing

    def has(self, thing: Thing, name: str) -> bool:
        """Whether an active rule gives a thing the property `name`."""
        holders = self._holders.get(name)
        if not holders or thing.kind != "object":
            return False
        return (thing.name, "") in holders or (thing.name, thing.colour) in holders

    def find(self, name: str) -> list[int]:
        """Cells that hold a thing with the property `name`, in the order of the map."""
        return sorted(place for place, _ in self._find(name))

    def _find(self, name: str) -> list[tuple[int, Thing]]:
        if not self._holders.get(name):
            return []
        return [(place, thing) for thing, place in self._places.items() if self.has(thing, name)]

    def step(self, action: str) -> Outcome | None:
        """Move everything that is YOU, then everything that moves by itself; `idle` passes without either."""
        if action == "idle":
            return None
        outcome = self._move_you(action)
        self._move_others()
        if self._text_moved:
            self.read_rules()
        self._transform()
        return outcome

    def read_rules(self) -> None:
        """Find the rules: text in a line, from left to right or from top to bottom."""
        self.rules, self._holders, self._becoming, self._text_moved = [], {}, [], False
        for place, cell in enumerate(self.cells):
            if cell and cell[-1].kind == "is":
                for step in (1, self.width):
                    self._read_rule(place, step)

    def _read_rule(self, place: int, step: int) -> None:
        subject, predicate = self._top(place - step), self._top(place + step)
        if subject is None or predicate is None or subject.kind != "noun":
            return
        before = self._top(place - 2 * step)
        colour = before.name if before is not None and before.kind == "colour" else ""
        if predicate.kind == "property":
            self._holders.setdefault(predicate.name, set()).add((subject.name, colour))
        elif predicate.kind == "noun":
            self._becoming.append((subject.name, predicate.name))
        else:
            return
        self.rules.append(f"{colour} {subject.name} is {predicate.name}".strip())

    def _top(self, place: int) -> Thing | None:
        # No text is on the border, so what is beyond it is never asked for but for a colour.
        cell = self.cells[place] if 0 <= place < len(self.cells) else None
        return cell[-1] if cell else None

    def _move_you(self, direction: str) -> Outcome | None:
        outcome: Outcome | None = None
        for _, thing in sorted(self._find("you"), key=lambda found: found[0]):
            # One that was pushed by another of its kind moves on from there; one that is gone does not.
            if (place := self._places.get(thing, -1)) < 0:
                continue
            met = self._move(thing, place, direction)
            if met is not None and outcome != "win":
                outcome = "win" if self.has(met, "win") else "lose" if self.has(met, "lose") else outcome
        return outcome

    def _move_others(self) -> None:
        for _, thing in sorted(self._find("move"), key=lambda found: found[0]):
            place = self._places.get(thing, -1)
            if place >= 0 and not self.has(thing, "you"):
                self._move(thing, place, thing.direction)

    def _move(self, thing: Thing, place: int, direction: str) -> Thing | None:
        """Move a thing by one cell if it can; what it met there, or where it stays.

        What can be pushed is pushed, what opens meets what is shut and both are gone, and what can be pulled follows.
        """
        step = self.steps[direction]
        ahead = place + step
        thing.direction = direction
        if self._opens(thing, place, ahead):
            return None
        met = self._top(ahead)
        if met is not None and (met.is_text or self.has(met, "push")):
            self._move(met, ahead, direction)
            met = self._top(ahead)
        if met is not None and self._is_solid(met):
            return self._top(place)
        self._remove(thing, place)
        self._put(thing, ahead)
        follower = self._top(place - step)
        if follower is not None and self.has(follower, "pull"):
            self._move(follower, place - step, direction)
        return met

    def _is_solid(self, thing: Thing) -> bool:
        return thing.kind != "object" or self.has(thing, "stop")

    def _opens(self, thing: Thing, place: int, ahead: int) -> bool:
        met = self._top(ahead)
        if met is None or not any(
            self.has(thing, one) and self.has(met, other) for one, other in (("open", "shut"), ("shut", "open"))
        ):
            return False
        self._remove(thing, place)
        self._remove(met, ahead)
        return True

    def _put(self, thing: Thing, place: int) -> None:
        self.cells[place].append(thing)
        if thing.kind == "object":
            self._places[thing] = place
        else:
            self._text_moved = True

    def _remove(self, thing: Thing, place: int) -> None:
        self.cells[place].remove(thing)
        self._places.pop(thing, None)

    def _transform(self) -> None:
        for name, other in self._becoming:
            for thing in self._places:
                if thing.name == name:
                    thing.name = other
