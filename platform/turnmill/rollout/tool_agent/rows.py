"""What a trajectory comes to: rows for verl, and the figures that are logged of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from turnmill.core.trajectory import StopReason
from turnmill.rollout.tokens import Row


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
