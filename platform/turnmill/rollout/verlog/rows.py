"""Rows for verl: one per turn, with the facts about the turn that learning needs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from turnmill.core.trajectory import Turn

if TYPE_CHECKING:
    from turnmill.rollout.verlog.slot import Slot


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What a row says of its turn, as numbers: they travel as one tensor, in the order of these fields."""

    slot: float = 0.0
    time: float = 0.0
    reward: float = 0.0
    done: float = 0.0
    valid: float = 1.0
    bootstrap: float = 0.0
    plan_length: float = 0.0
    backtrack_length: float = 0.0
    episode_length: float = 0.0
    episode_reward: float = 0.0
    truncated: float = 0.0
    failures: float = 0.0
    inference_failures: float = 0.0
    sampled: float = 0.0
    """Digest of the tokens as the engine gave them."""

    generation_seconds: float = 0.0
    tools_seconds: float = 0.0
    loop_seconds: float = 0.0
    """Of the whole segment, in its bootstrap row."""

    episode: float = 0.0
    """Its number among the slot's."""

    turn: float = 0.0
    """Its number in the episode."""

    def tensor(self) -> torch.Tensor:
        """All fields, shape (facts,)."""
        return torch.tensor([float(value) for value in asdict(self).values()], dtype=torch.float64)


FACTS = {field.name: position for position, field in enumerate(fields(TurnFacts))}
"""Where each fact stands in the tensor."""


class TurnRow(AgentLoopOutput):
    """A turn as verl's agent loops return it; its reward is its own and is not overwritten by a later turn's."""

    facts: TurnFacts

    def as_dict(self) -> dict[str, Any]:
        """The fields that verl stores, and `turn_facts`."""
        fields_ = super().as_dict()
        fields_.pop("facts", None)
        scores = torch.zeros_like(fields_["response_mask"], dtype=torch.float32)
        scores[-1] = self.facts.reward
        return {**fields_, "rm_scores": scores, "turn_facts": self.facts.tensor()}


def turn_row(
    turn: Turn, *, slot: "Slot", time: int, episode: Sequence[Turn] = (), failures: Sequence[str] = ()
) -> TurnRow:
    """The row of a turn; with `episode`, the row that stands for a whole validation episode."""
    facts = TurnFacts(
        slot=slot.index,
        time=time,
        reward=turn.reward,
        done=turn.done,
        valid=sum(t.valid for t in episode) / len(episode) if episode else turn.valid,
        plan_length=turn.metrics.get("plan_length", 0.0),
        backtrack_length=turn.metrics.get("backtrack_length", 0.0),
        episode_length=len(episode) or (slot.turn + 1 if turn.done else 0),
        episode_reward=sum(t.reward for t in episode) if episode else slot.reward,
        truncated=slot.stop_reason(turn) == "max_turns",
        failures=len(failures),
        inference_failures=sum(cause == "inference" for cause in failures),
        sampled=turn.metrics.get("sampled", 0.0),
        episode=slot.episode,
        turn=slot.turn,
    )
    return _row(list(turn.prompt_ids), list(turn.response_ids), 1, list(turn.log_probs), facts, turn)


def bootstrap_row(
    prompt_ids: list[int],
    filler_id: int,
    *,
    slot: "Slot",
    time: int,
    failures: Sequence[str],
    seconds: Mapping[str, float],
) -> TurnRow:
    """The prompt after the last turn; one token that nobody sampled stands where a response would.

    `seconds` is what the segment spent its time on.
    """
    facts = TurnFacts(
        slot=slot.index,
        time=time,
        bootstrap=1,
        failures=len(failures),
        inference_failures=sum(cause == "inference" for cause in failures),
        **{f"{part}_seconds": value for part, value in seconds.items()},
    )
    return _row(prompt_ids, [filler_id], 0, [0.0], facts, None)


def _row(
    prompt_ids: list[int],
    response_ids: list[int],
    mask: int,
    log_probs: list[float],
    facts: TurnFacts,
    turn: Turn | None,
) -> TurnRow:
    version = turn.policy_version if turn else 0
    oldest = int(turn.metrics.get("min_policy_version", version)) if turn else 0
    return TurnRow(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        response_mask=[mask] * len(response_ids),
        response_logprobs=log_probs,
        num_turns=1,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}, "min_global_steps": oldest, "max_global_steps": version},
        facts=facts,
    )
