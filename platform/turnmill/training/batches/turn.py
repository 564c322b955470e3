"""Turns of a step in order of time, and their metrics.

Axes: R rows (time-major: row = time * segments + segment; the last ones are the bootstrap rows), G response tokens,
padded by one slot where there is room.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.core.trajectory import SegmentMetadata, TurnMetadata
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.advantage_log import TokenAdvantages
from turnmill.observability.step_time import IN_FLIGHT, ROLLOUT, SLOTS
from turnmill.rollout.queue_payload import TURN_METADATA, decode
from turnmill.rollout.token_integrity import array_checksum
from turnmill.training.batches.diagnostics import by_outcome
from turnmill.training.batches.ragged import padded
from turnmill.training.batches.rewards import reward_quantiles
from turnmill.training.dataset import prompt_lengths


@dataclass(frozen=True)
class TurnBatch:
    """Turns and bootstrap rows of one step, as padded tensors."""

    meta: KVBatchMeta
    """The rows in order of time, bootstrap rows last."""

    turns: tuple[TurnMetadata, ...]
    segments: tuple[SegmentMetadata, ...]
    """Metadata of each bootstrap row."""

    mask_RG: Tensor
    values_RG: Tensor
    num_slots_R: Tensor
    response_lengths_R: Tensor
    prompt_lengths_R: Tensor
    scores_RG: Tensor
    """Scores of the turns; this and the two tensors that follow have no bootstrap rows."""

    old_log_probs_RG: Tensor
    ref_log_probs_RG: Tensor

    num_unsampled_tokens: int = 0
    """Number of trained tokens that differ from those that the engine sampled."""

    @property
    def num_turns(self) -> int:
        """Number of rows that are turns; the others are bootstrap rows."""
        return len(self.turns)

    @property
    def num_segments(self) -> int:
        """Number of slots that played a segment."""
        return len(self.segments)

    @property
    def dones_R(self) -> Tensor:  # noqa: N802 (named for its axis)
        """1 for turns that ended an episode, 0 for other turns and bootstrap rows."""
        dones = [float(turn.done) for turn in self.turns]
        return torch.tensor(dones + [0.0] * self.num_segments, dtype=torch.float64)

    @classmethod
    def read(cls, batch: KVBatchMeta, job: AgentTrainingJob) -> "TurnBatch":
        """Fetch a step's rows from the queue, in order of time."""
        meta, num_segments = sort_by_time(batch)
        turns_per_segment = len(meta.keys) // num_segments - 1
        num_turns = num_segments * turns_per_segment
        common = tq.kv_batch_get(
            keys=meta.keys,
            partition_id=meta.partition_id,
            select_fields=["responses", "response_mask", "slot_values", TURN_METADATA],
        )
        fields = ["rm_scores", "old_log_probs"]
        with_reference = job.spec.kl.in_reward
        turns = tq.kv_batch_get(
            keys=meta.keys[:num_turns],
            partition_id=meta.partition_id,
            select_fields=[*fields, "ref_log_prob"] if with_reference else fields,
        )
        lengths = common["responses"].offsets().diff()
        num_slots = common["slot_values"].offsets().diff()
        width = int(num_slots.max())
        equal = {name: _pad(turns[name], width) for name in turns.keys()}  # noqa: SIM118 (a TensorDict)
        metadata = list(common[TURN_METADATA])
        played = tuple(decode(value, TurnMetadata) for value in metadata[:num_turns])
        return cls(
            meta=meta,
            turns=played,
            segments=tuple(decode(value, SegmentMetadata) for value in metadata[num_turns:]),
            mask_RG=_pad(common["response_mask"], width),
            values_RG=_pad(common["slot_values"], width),
            num_slots_R=num_slots,
            response_lengths_R=lengths,
            prompt_lengths_R=prompt_lengths(meta),
            scores_RG=equal["rm_scores"],
            old_log_probs_RG=equal["old_log_probs"],
            ref_log_probs_RG=equal.get("ref_log_prob", equal["old_log_probs"]),
            num_unsampled_tokens=count_unsampled_tokens(common["responses"], common["response_mask"], played),
        )

    def with_bootstrap_rows(self, x_RG: Tensor) -> Tensor:
        """Append a row of zeros for each bootstrap row."""
        return torch.cat([x_RG, x_RG.new_zeros(self.num_segments, x_RG.shape[1])])

    def token_advantages(self, advantages_RG: Tensor) -> Iterator[TokenAdvantages]:
        """Yield episode id, number and advantages of the response tokens of each turn."""
        lengths = self.response_lengths_R[: self.num_turns].tolist()
        for turn, length, values in zip(self.turns, lengths, advantages_RG.numpy(), strict=False):
            yield turn.episode_id, turn.turn, values[:length]

    def write(self, advantages_RG: Tensor, returns_RG: Tensor, rewards_RG: Tensor) -> None:
        """Write advantages, returns and rewards of the turns to the queue, for verl's updates."""
        turns, lengths, slots = self.num_turns, self.response_lengths_R, self.num_slots_R
        columns = {
            "advantages": _ragged(advantages_RG[:turns], lengths),
            "returns": _ragged(returns_RG[:turns], lengths),
            "slot_returns": _ragged(returns_RG[:turns], slots),
            "token_level_rewards": _ragged(rewards_RG[:turns], lengths),
        }
        tq.kv_batch_put(
            keys=self.meta.keys[:turns],
            partition_id=self.meta.partition_id,
            fields=TensorDict(columns, batch_size=turns),
        )


def sort_by_time(batch: KVBatchMeta) -> tuple[KVBatchMeta, int]:
    """Return the rows by time, then by segment, and the number of segments; keys are {segment}_{session}_{time}."""
    parsed = [(int(key.rsplit("_", 2)[2]), key.rsplit("_", 2)[0], i) for i, key in enumerate(batch.keys)]
    order = [i for _, _, i in sorted(parsed)]
    meta = KVBatchMeta(
        partition_id=batch.partition_id, keys=[batch.keys[i] for i in order], tags=[batch.tags[i] for i in order]
    )
    return meta, len({segment for _, segment, _ in parsed})


def count_unsampled_tokens(responses: Tensor, masks: Tensor, turns: Sequence[TurnMetadata]) -> int:
    """Count the trained tokens of turns whose checksum differs from that of the sampled tokens."""
    unsampled = 0
    # Bootstrap rows come after the turns.
    for ids, mask, turn in zip(responses.unbind(), masks.unbind(), turns, strict=False):
        trained = ids.numpy()[mask.numpy() != 0]
        unsampled += len(trained) if array_checksum(trained) != turn.sampled_checksum else 0
    return unsampled


def turn_metrics(batch: TurnBatch, rewards_RG: Tensor, *, max_response_tokens: int) -> dict[str, float]:
    """Return the metrics of a step's turns; success, length and reward are means over the episodes that ended.

    A response with `max_response_tokens` counts as cut off.
    """
    turns = batch.turns
    ended = [turn for turn in turns if turn.done]
    truncated = sum(turn.truncated for turn in ended)
    causes = Counter(cause for segment in batch.segments for cause in segment.failure_causes)
    mask_RG = batch.mask_RG[: batch.num_turns]
    lengths = batch.response_lengths_R[: batch.num_turns].tolist()
    metrics: dict[str, float] = {
        "turnmill/turns": batch.num_turns,
        "turnmill/prompt_tokens": float(batch.prompt_lengths_R[: batch.num_turns].sum()),
        "turnmill/response_tokens": float(mask_RG.sum()),
        "turnmill/turn_reward_mean": fmean(turn.reward for turn in turns),
        "turnmill/token_reward_mean": (rewards_RG * mask_RG).sum(1).mean().item(),
        "turnmill/valid_action_ratio": fmean(turn.valid for turn in turns),
        "turnmill/truncated_ratio": fmean(length >= max_response_tokens for length in lengths),
        "turnmill/plan_length": fmean(turn.plan_length for turn in turns),
        "turnmill/backtrack_length": fmean(turn.backtrack_length for turn in turns),
        "turnmill/episodes/completed": float(len(ended) - truncated),
        "turnmill/episodes/max_turns": float(truncated),
        "turnmill/episodes/failed": float(causes.total()),
        "turnmill/failures/inference": float(causes["inference"]),
        "turnmill/failures/environment": float(causes.total() - causes["inference"]),
        "turnmill/token_mismatches": batch.num_unsampled_tokens,
        SLOTS: batch.num_segments,
        **{f"{ROLLOUT}{part}": sum(segment.seconds.get(part, 0.0) for segment in batch.segments) for part in IN_FLIGHT},
    }
    if ended:
        metrics["turnmill/success"] = fmean(turn.success for turn in ended)
        metrics["turnmill/episode_length"] = fmean(turn.episode_length for turn in ended)
        metrics["turnmill/reward_mean"] = fmean(turn.episode_reward for turn in ended)
        solved_K = [turn.success for turn in ended]
        metrics |= by_outcome("turnmill/episode_length", solved_K, [turn.episode_length for turn in ended])
        metrics |= by_outcome("turnmill/response_length", *_response_lengths(batch))
        metrics |= reward_quantiles(torch.tensor([turn.episode_reward for turn in ended], dtype=torch.float64))
    return metrics


def _response_lengths(batch: TurnBatch) -> tuple[list[bool], list[int]]:
    """Return the outcome of its episode, and the response tokens, of each turn whose episode ended in this step."""
    solved = {turn.episode_id: turn.success for turn in batch.turns if turn.done}
    turns = zip(batch.turns, batch.response_lengths_R.tolist(), strict=False)
    found = [(solved[turn.episode_id], length) for turn, length in turns if turn.episode_id in solved]
    return [outcome for outcome, _ in found], [length for _, length in found]


def _pad(x: Tensor, width: int) -> Tensor:
    found = padded(x)
    return torch.nn.functional.pad(found, (0, width - found.shape[1])) if found.shape[1] < width else found[:, :width]


def _ragged(x_RG: Tensor, lengths_R: Tensor) -> Tensor:
    rows = [row[:length] for row, length in zip(x_RG, lengths_R.tolist(), strict=False)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
