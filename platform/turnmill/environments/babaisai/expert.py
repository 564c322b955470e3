"""Expert for BabaIsAI: breadth-first search for the shortest solution."""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Protocol

from turnmill.environments.babaisai.engine import OBJECTS, World
from turnmill.environments.babaisai.text import format_steps

MOVES = ("up", "right", "down", "left")

MAX_STATES = 20_000
"""States that one search may visit."""


class Game(Protocol):
    """Part of the BabaIsAI environment that its expert reads."""

    actions: tuple[str, ...]
    world: World

    def compact_prompt(self) -> str:
        """Return the prompt that states the goal."""


def solve(world: World, *, max_states: int = MAX_STATES) -> list[str]:
    """Return the shortest list of actions that wins; empty if a search of `max_states` states finds none."""
    queue: deque[tuple[World, list[str]]] = deque([(world.copy(), [])])
    visited = {_key(world)}
    while queue and len(visited) < max_states:
        state, actions = queue.popleft()
        for action in MOVES:
            after = state.copy()
            outcome = after.step(action)
            if outcome == "win":
                return [*actions, action]
            if outcome is None and after.find("you") and (key := _key(after)) not in visited:
                visited.add(key)
                queue.append((after, [*actions, action]))
    return []


class BabaIsAIExpert:
    """Follows the shortest solution, and searches again after an action that was not its own."""

    def __init__(self, environment: Game) -> None:
        self.environment = environment
        self._plan: deque[str] = deque()
        self._advised: str | None = None

    def advise(self, last_action: str | None) -> str | None:
        """Return the next action of the shortest solution, or None if the search finds none."""
        if last_action is None or last_action != self._advised:
            self._plan = deque(solve(self.environment.world))
        self._advised = self._plan.popleft() if self._plan else None
        return self._advised

    def thought(self) -> str:
        """Return the direction of the action that was advised last."""
        return f"the way is {self._advised}"

    def phrases(self) -> Iterator[str]:
        """Yield texts that contain every word of prompts, observations and answers, with the space before it."""
        yield self.environment.compact_prompt()
        yield "Active rules:\n\nObjects on the map:\nNothing was YOU any more: the level begins anew."
        for name in OBJECTS:
            yield f"{name} is you\n{name} is win\n{name} is stop\nrule `{name}` and"
        yield "rule `is`\nrule `you`\nrule `win`\nrule `stop`"
        for number in range(1, 12):
            yield f"wall {format_steps(number)} to the right and {format_steps(number)} up"
            yield f"wall {format_steps(number)} to the left and {format_steps(number)} down"
        for action in self.environment.actions:
            yield f"the way is {action}"


def _key(world: World) -> Hashable:
    # Everything but the border, which cannot move.
    return tuple(
        (index, *((thing.kind, thing.name, thing.colour) for thing in cell))
        for index, cell in enumerate(world.cells)
        if cell and cell[-1].kind != "border"
    )
