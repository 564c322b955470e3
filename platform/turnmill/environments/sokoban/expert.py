"""Who shows a policy how Sokoban is played: the shortest way to solve the room, and what it pushes where."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnmill.environments.sokoban.rooms import BOX, BOX_ON_TARGET, WALL
from turnmill.environments.sokoban.text import free_targets, offset, where

if TYPE_CHECKING:
    from turnmill.environments.sokoban.environment import Sokoban

MAX_SEARCHED = 100_000

_State = tuple[int, frozenset[int]]
"""Where the player is, and where the boxes are."""


class SokobanExpert:
    """Solves the room anew from wherever the last action led."""

    def __init__(self, environment: "Sokoban") -> None:
        self.environment = environment
        self._plan: deque[str] = deque()
        self._expected: _State | None = None

    def advise(self, last_action: str | None) -> str | None:
        """The first action of the shortest solution; None where the room cannot be solved any more."""
        state = self._state()
        if last_action is None or state != self._expected:
            self._plan = deque(self._solve(state))
        if not self._plan:
            return None
        action = self._plan.popleft()
        self._expected = self._after(state, self.environment.moves[action])
        return action

    def thought(self) -> str:
        """Where the nearest box and the nearest target are, seen from the player."""
        environment = self.environment
        boxes = [cell for cell in self._state()[1] if cell not in environment.targets]
        return f"the box is {self._where(boxes)} and the target is {self._where(free_targets(environment))}"

    def phrases(self) -> Iterator[str]:
        """Every word of a prompt or an answer, each in its place in a line."""
        environment = self.environment
        yield environment.compact_prompt()
        rows, columns = environment.options.size
        for number in range(max(rows, columns)):
            for direction in environment.actions:
                yield f"the box is {number} {direction} {number} {direction} and the target is placed"
        yield " here"
        yield "# # _ O √ X P S\n#"
        for direction in environment.actions:
            yield f"player wall {direction}"
            yield f"box {direction} wall {direction}"
            yield f"target {direction} wall {direction}"

    def _state(self) -> _State:
        cells = self.environment.cells
        return self.environment.player, frozenset(i for i, cell in enumerate(cells) if cell in (BOX, BOX_ON_TARGET))

    def _where(self, cells: list[int]) -> str:
        if not cells:
            return "placed"
        return where(self.environment, min(sorted(cells), key=self._distance))

    def _distance(self, cell: int) -> int:
        down, right = offset(self.environment, cell)
        return abs(down) + abs(right)

    def _after(self, state: _State, move: int) -> _State:
        player, boxes = state
        ahead = player + move
        if self.environment.cells[ahead] == WALL:
            return state
        if ahead not in boxes:
            return ahead, boxes
        beyond = ahead + move
        if self.environment.cells[beyond] == WALL or beyond in boxes:
            return state
        return ahead, boxes - {ahead} | {beyond}

    def _solve(self, start: _State) -> list[str]:
        came_from: dict[_State, tuple[_State, str] | None] = {start: None}
        waiting = deque([start])
        while waiting and len(came_from) < MAX_SEARCHED:
            state = waiting.popleft()
            if state[1] == self.environment.targets:
                return _actions_to(state, came_from)
            for action, move in self.environment.moves.items():
                reached = self._after(state, move)
                if reached not in came_from:
                    came_from[reached] = (state, action)
                    waiting.append(reached)
        return []


def _actions_to(state: _State, came_from: dict[_State, tuple[_State, str] | None]) -> list[str]:
    actions = []
    while (step := came_from[state]) is not None:
        state, action = step
        actions.append(action)
    return actions[::-1]
