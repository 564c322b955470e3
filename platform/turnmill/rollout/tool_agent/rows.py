"""What a trajectory comes to: rows for verl, and the figures that are logged of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from turnmill.core.trajectory import StopReason
from turnmill.rollout.tool_agent.context import Row

MAX_TURNS_WITH_FIGURES = 8
"""Of later turns no figure of their own is logged."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trajectory ended that can be learned from."""

    name: str
    rows: tuple[Row, ...]
    reward: float
    stop_reason: StopReason
    detail: str
    """The stop reason in verl-tool's words."""

    num_turns: int
    learned: bool
    """Whether its tokens go into the loss."""

    policy_versions: tuple[int, int]
    """Of its tokens, the oldest and the newest."""

    sampled: bytes = b""
    """Every token that the engine gave, packed."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """What it spent its time on."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """By the names of verl-tool's metrics."""


def verl_rows(outcome: Outcome, *, log_probs: bool) -> list[AgentLoopOutput]:
    """The rows as verl's agent loops return them; all of them have the trajectory's reward."""
    oldest, newest = outcome.policy_versions
    common: dict[str, Any] = {
        "reward_extra_info": {},
        "min_global_steps": oldest,
        "max_global_steps": newest,
        "trajectory": {
            "name": outcome.name,
            "reward": outcome.reward,
            "stop_reason": outcome.stop_reason,
            "num_rows": len(outcome.rows),
            "sampled": outcome.sampled,
            "seconds": dict(outcome.seconds),
            "figures": dict(outcome.figures),
        },
    }
    return [
        AgentLoopOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response.ids),
            response_mask=list(row.response.mask) if outcome.learned else [0] * len(row.response),
            response_logprobs=list(row.response.log_probs) if log_probs else None,
            reward_score=outcome.reward,
            num_turns=outcome.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields=dict(common),
        )
        for row in outcome.rows
    ]


class Figures:
    """What is measured of one trajectory while it goes on, by the names of verl-tool's metrics."""

    def __init__(self) -> None:
        self._lists: dict[str, list[float]] = {}
        self._once: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """One value of several, of which the trajectory's figure is the mean."""
        self._lists.setdefault(name, []).append(value)

    def put(self, name: str, value: float) -> None:
        """The figure itself."""
        self._once[name] = value

    def total(self, name: str) -> float:
        """The sum of a figure's values."""
        return sum(self._lists.get(name, ()))

    def count(self, name: str) -> int:
        """How many values a figure has."""
        return len(self._lists.get(name, ()))

    def read(self) -> dict[str, float]:
        """Every figure."""
        return {name: sum(values) / len(values) for name, values in self._lists.items()} | self._once
