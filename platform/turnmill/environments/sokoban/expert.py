"""Expert for Sokoban: breadth-first search for the shortest solution."""

from collections import deque
from collections.abc import Iterator

from turnmill.environments.sokoban.board import Board
from turnmill.environments.sokoban.rooms import WALL
from turnmill.environments.sokoban.text import relative_position

MAX_STATES = 100_000
"""States that one search may visit."""

_State = tuple[int, frozenset[int]]
"""Cells of the player and of the boxes."""


class SokobanExpert:
    """Follows the shortest solution, and searches again after an action that was not its own."""

    def __init__(self, board: Board, goal: str) -> None:
        """Take the board that is played on, and the goal as prompts state it."""
        self.board = board
        self.goal = goal
        self._plan: deque[str] = deque()
        self._expected: _State | None = None

    def advise(self, last_action: str | None) -> str | None:
        """Return the next action of the shortest solution, or None if the search finds none."""
        state = self._state()
        if last_action is None or state != self._expected:
            self._plan = deque(self._solve(state))
        if not self._plan:
            return None
        action = self._plan.popleft()
        self._expected = self._next_state(state, self.board.moves[action])
        return action

    def thought(self) -> str:
        """Return the positions of the nearest box and the nearest target, relative to the player."""
        boxes = [cell for cell in self.board.boxes if cell not in self.board.targets]
        return f"the box is {self._nearest(boxes)} and the target is {self._nearest(self.board.free_targets)}"

    def phrases(self) -> Iterator[str]:
        """Yield texts that contain every word of prompts, observations and answers, with the space before it."""
        yield self.goal
        for number in range(max(self.board.num_rows, self.board.num_columns)):
            for direction in self.board.moves:
                yield f"the box is {number} {direction} {number} {direction} and the target is placed"
        yield " here"
        yield "# # _ O √ X P S\n#"
        for direction in self.board.moves:
            yield f"player wall {direction}"
            yield f"box {direction} wall {direction}"
            yield f"target {direction} wall {direction}"

    def _state(self) -> _State:
        return self.board.player, frozenset(self.board.boxes)

    def _nearest(self, cells: list[int]) -> str:
        if not cells:
            return "placed"
        return relative_position(self.board, min(cells, key=self._distance))

    def _distance(self, cell: int) -> int:
        down, right = self.board.offset(cell)
        return abs(down) + abs(right)

    def _next_state(self, state: _State, move: int) -> _State:
        player, boxes = state
        ahead = player + move
        if self.board.cells[ahead] == WALL:
            return state
        if ahead not in boxes:
            return ahead, boxes
        beyond = ahead + move
        if self.board.cells[beyond] == WALL or beyond in boxes:
            return state
        return ahead, boxes - {ahead} | {beyond}

    def _solve(self, start: _State) -> list[str]:
        came_from: dict[_State, tuple[_State, str] | None] = {start: None}
        queue = deque([start])
        while queue and len(came_from) < MAX_STATES:
            state = queue.popleft()
            if state[1] == self.board.targets:
                return _actions_to(state, came_from)
            for action, move in self.board.moves.items():
                reached = self._next_state(state, move)
                if reached not in came_from:
                    came_from[reached] = (state, action)
                    queue.append(reached)
        return []


def _actions_to(state: _State, came_from: dict[_State, tuple[_State, str] | None]) -> list[str]:
    actions = []
    while (step := came_from[state]) is not None:
        state, action = step
        actions.append(action)
    return actions[::-1]
