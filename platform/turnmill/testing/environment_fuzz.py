"""Property tests of environments, with arbitrary text as responses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from turnmill.environments import create
from turnmill.environments.runtime.episode import TurnEnvironment

PENALTY = 0.25
_MAX_TURNS = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """An environment with its task and options."""

    name: str
    task: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.task}" if self.task else self.name


KINDS = (
    Kind("babaisai", "two_room-break_stop-make_win-distr_obj_rule"),
    Kind("babyai", "putnext"),
    Kind("bird", options={"queryTimeoutSeconds": 2}),
    Kind("blocksworld", options={"numBlocks": 4, "view": "2d_sparse"}),
    Kind("crafter", options={"area": [16, 16]}),
    Kind("maths", "gsm8k"),
    Kind("maths", "math500"),
    Kind("sokoban", options={"numBoxes": 2, "size": [7, 7], "searchDepth": 30}),
    Kind("tetris", options={"boxType": 3}),
    Kind("webshop"),
)
"""Environments that need only turnmill's own dependencies."""

_PIECES = (
    "ACTION:", "action:", "Action", "THINK:", "\n", " ", ".", ",", "_", "(", ")", "[", "]", "```sql\n", "\n```",
    "\\boxed{", "}", "search[", "click[", "move ", " to ", "0", "1", "3", "-7", "99999999999", "up", "left", "do",
    "Move North-West", "SELECT * FROM book", "; DROP TABLE book", "\\frac{1}{0}", "9^{9^{9^{9}}}", "²", "\0", "\ud800",
    "tent", "buy now",
)  # fmt: skip


def responses(actions: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Return a strategy of arbitrary text and of text that resembles actions."""
    pieces = st.lists(st.sampled_from([*_PIECES, *actions]) | st.text(max_size=4), max_size=8).map("".join)
    announced = st.sampled_from(actions).map("ACTION: {}".format) if actions else st.nothing()
    return st.text() | pieces | pieces.map("ACTION: {}".format) | announced


def make(kind: Kind) -> TurnEnvironment:
    """Return the environment under the rules of a job."""
    return TurnEnvironment(
        create(kind.name, kind.task, _MAX_TURNS, kind.options), invalid_penalty=PENALTY, binary_reward=False
    )


def give(episode: TurnEnvironment, seed: int, texts: Iterable[str]) -> None:
    """Execute responses one after the other, with a reset after the end of each episode, and check every result."""
    episode.reset(seed)
    for text in texts:
        result = episode.act(text)
        assert math.isfinite(result.reward)
        assert isinstance(result.observation, str)
        if not result.valid:
            assert result.action == episode.environment.default_action
            assert result.reward == -PENALTY
        if result.done:
            episode.reset(seed)
