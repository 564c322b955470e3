"""What an agent remembers of its episode: a window of its last turns."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn as the agent looks back on it."""

    observation: str
    """What it saw."""

    response: str
    """What it answered, word for word."""

    action: str
    """What was executed: the default action where the response held none."""


class Memory:
    """The newest `text_turns` turns, and what the agent sees now."""

    def __init__(self, *, text_turns: int, thought_turns: int) -> None:
        self.text_turns = text_turns
        self.thought_turns = thought_turns
        self.observation = ""
        """What the agent is to answer."""

        self._turns: deque[RememberedTurn] = deque(maxlen=text_turns)

    @property
    def turns(self) -> tuple[RememberedTurn, ...]:
        """The turns in the window, oldest first."""
        return tuple(self._turns)

    def begin(self, observation: str) -> None:
        """Begin an episode: of the last one nothing is remembered."""
        self._turns.clear()
        self.observation = observation

    def remember(self, *, response: str, action: str, observation: str) -> None:
        """Add the turn that answered the present observation; `observation` is what it brought."""
        self._turns.append(RememberedTurn(self.observation, response, action))
        self.observation = observation

    def recall_answers(self) -> tuple[tuple[RememberedTurn, bool], ...]:
        """The turns in the window, each with whether its response is remembered in full."""
        first_in_full = len(self._turns) - self.thought_turns
        return tuple((turn, index >= first_in_full) for index, turn in enumerate(self._turns))
