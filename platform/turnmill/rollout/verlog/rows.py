"""Rows for verl, one per turn, with the turn's metadata for training."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field, InstanceOf

from turnmill.core.trajectory import EpisodeSummary, SegmentMetadata, Turn, TurnMetadata
from turnmill.rollout.queue_payload import TURN_METADATA, encode
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.verl_classes import AgentLoopMetrics, AgentLoopOutput
from turnmill.rollout.verlog.slot import Slot


class TurnRow(AgentLoopOutput):
    """A turn as verl's agent loops return it, with a reward of its own that later turns do not overwrite."""

    metadata: TurnMetadata | SegmentMetadata = Field(exclude=True)
    episode_summary: InstanceOf[EpisodeSummary] | None = Field(default=None, exclude=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the columns of the queue: those of verl, and the metadata."""
        columns = super().as_dict()
        scores = torch.zeros_like(columns["response_mask"], dtype=torch.float32)
        if isinstance(self.metadata, TurnMetadata):
            scores[-1] = self.metadata.reward
        return {**columns, "rm_scores": scores, TURN_METADATA: encode(self.metadata)}


def turn_row(turn: Turn, *, slot: Slot) -> TurnRow:
    """Return the row of the turn that the slot has just played."""
    metadata = TurnMetadata(
        episode_id=slot.episode_name,
        turn=slot.turn,
        reward=turn.reward,
        done=turn.done,
        truncated=slot.stop_reason(turn) == "max_turns",
        valid=turn.valid,
        plan_length=turn.metrics.get("plan_length", 0.0),
        backtrack_length=turn.metrics.get("backtrack_length", 0.0),
        episode_length=slot.turn + 1 if turn.done else 0,
        episode_reward=slot.reward,
        success=slot.success,
        sampled_checksum=int(turn.metrics.get("sampled", 0)),
    )
    version = turn.policy_version
    oldest = int(turn.metrics.get("min_policy_version", version))
    return TurnRow(
        prompt_ids=list(turn.prompt_ids),
        response_ids=list(turn.response_ids),
        response_mask=[1] * len(turn.response_ids),
        response_logprobs=list(turn.log_probs),
        num_turns=1,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}, "min_global_steps": oldest, "max_global_steps": version},
        metadata=metadata,
    )


def bootstrap_row(
    prompt_ids: list[int], filler_id: int, *, failure_causes: Sequence[str], seconds: Mapping[str, float]
) -> TurnRow:
    """Return the row of the prompt after a segment's last turn; `filler_id` replaces the response.

    `failure_causes` and `seconds` are those of the whole segment.
    """
    return TurnRow(
        prompt_ids=prompt_ids,
        response_ids=[filler_id],
        response_mask=[0],
        response_logprobs=[0.0],
        num_turns=1,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}, "min_global_steps": 0, "max_global_steps": 0},
        metadata=SegmentMetadata(failure_causes=tuple(failure_causes), seconds=dict(seconds)),
    )


def episode_summary(
    turns: Sequence[Turn], *, slot: Slot, row_states: Sequence[str] = (), num_failures: int | None = None
) -> EpisodeSummary:
    """Return the summary of an episode whose turns are rows of their own.

    `num_failures` is the number of times that a validation had to repeat the episode.
    """
    stop_reason = slot.stop_reason(turns[-1])
    assert stop_reason is not None
    metrics = {
        "num_turns": float(len(turns)),
        "valid_action": sum(turn.valid for turn in turns) / len(turns),
        "plan_length": sum(turn.metrics.get("plan_length", 0.0) for turn in turns) / len(turns),
        "backtrack_length": sum(turn.metrics.get("backtrack_length", 0.0) for turn in turns) / len(turns),
    }
    return EpisodeSummary(
        episode_id=slot.episode_name,
        reward=sum(turn.reward for turn in turns),
        stop_reason=stop_reason,
        success=slot.success,
        num_turns=len(turns),
        num_rows=len(turns),
        sampled_tokens=b"".join(pack_tokens(turn.response_ids) for turn in turns),
        seconds=slot.timing.elapsed_seconds(),
        metrics=metrics if num_failures is None else metrics | {"failures": float(num_failures)},
        row_rewards=True,
        row_states=tuple(row_states),
    )
