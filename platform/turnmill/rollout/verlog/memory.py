"""The agent's memory of its episode: a window of its last turns."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn in the agent's memory."""

    observation: str
    """Observation before the response."""

    response: str
    """Response in full."""

    action: str
    """Executed action; the default action if the response contained none."""


class Memory:
    """The newest `text_turns` turns, and the current observation."""

    def __init__(self, *, text_turns: int, thought_turns: int) -> None:
        self.text_turns = text_turns
        self.thought_turns = thought_turns
        self.observation = ""
        """Observation that the agent responds to next."""

        self.num_turns = 0
        """Turns of the episode so far, also those that have left the window."""

        self._turns: deque[RememberedTurn] = deque(maxlen=text_turns)

    @property
    def turns(self) -> tuple[RememberedTurn, ...]:
        """The turns in the window, oldest first."""
        return tuple(self._turns)

    def begin(self, observation: str) -> None:
        """Begin an episode with an empty window."""
        self._turns.clear()
        self.num_turns = 0
        self.observation = observation

    def remember(self, *, response: str, action: str, observation: str) -> None:
        """Add the turn that responded to the current observation; `observation` is the next one."""
        self._turns.append(RememberedTurn(self.observation, response, action))
        self.num_turns += 1
        self.observation = observation

    def turns_with_detail(self) -> tuple[tuple[RememberedTurn, bool], ...]:
        """Return the turns in the window, each with True if its response is shown in full."""
        first_in_full = len(self._turns) - self.thought_turns
        return tuple((turn, index >= first_in_full) for index, turn in enumerate(self._turns))
