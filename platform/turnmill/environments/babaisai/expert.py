"""Who shows a policy how BabaIsAI is played: the shortest way to win, as far as it can be found in time."""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from turnmill.environments.babaisai.engine import OBJECTS, World
from turnmill.environments.babaisai.text import steps

if TYPE_CHECKING:
    from turnmill.environments.babaisai.environment import BabaIsAI

MOVES = ("up", "right", "down", "left")
MAX_SEARCHED = 20_000


def solve(world: World, *, max_searched: int = MAX_SEARCHED) -> list[str]:
    """The fewest actions that win; none where no such are found among `max_searched` situations."""
    waiting: deque[tuple[World, list[str]]] = deque([(world.copy(), [])])
    known = {_key(world)}
    while waiting and len(known) < max_searched:
        situation, actions = waiting.popleft()
        for action in MOVES:
            after = situation.copy()
            outcome = after.step(action)
            if outcome == "win":
                return [*actions, action]
            if outcome is None and after.find("you") and (key := _key(after)) not in known:
                known.add(key)
                waiting.append((after, [*actions, action]))
    return []


class BabaIsAIExpert:
    """Plans at the beginning, and anew where another action was taken than the one it advised."""

    def __init__(self, environment: "BabaIsAI") -> None:
        self.environment = environment
        self._plan: deque[str] = deque()
        self._advised: str | None = None

    def advise(self, last_action: str | None) -> str | None:
        """The next action of the shortest solution; None where none was found."""
        if last_action is None or last_action != self._advised:
            self._plan = deque(solve(self.environment.world))
        self._advised = self._plan.popleft() if self._plan else None
        return self._advised

    def thought(self) -> str:
        """Which way the plan goes on from here."""
        return f"the way is {self._advised}"

    def phrases(self) -> Iterator[str]:
        """Every word of a prompt or an answer, each in its place in a line."""
        yield self.environment.compact_prompt()
        yield "Active rules:\n\nObjects on the map:\nNothing was YOU any more: the level begins anew."
        for name in OBJECTS:
            yield f"{name} is you\n{name} is win\n{name} is stop\nrule `{name}` and"
        yield "rule `is`\nrule `you`\nrule `win`\nrule `stop`"
        for number in range(1, 12):
            yield f"wall {steps(number)} to the right and {steps(number)} up"
            yield f"wall {steps(number)} to the left and {steps(number)} down"
        for action in self.environment.actions:
            yield f"the way is {action}"


def _key(world: World) -> Hashable:
    # Everything that can move; the border is where it is.
    return tuple(
        (place, *((thing.kind, thing.name, thing.colour) for thing in cell))
        for place, cell in enumerate(world.cells)
        if cell and cell[-1].kind != "border"
    )
