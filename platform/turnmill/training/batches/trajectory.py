"""Trajectories of a step: those to train on with their rows, and those that failed.

Axes: R rows, G response tokens, K trajectories; a trajectory whose context rolled over has several rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.core.errors import OUTAGE_CAUSES, RunFailedError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.observability.advantage_log import TokenAdvantages
from turnmill.rollout.failure import FAILED, FAILURE
from turnmill.rollout.queue_payload import EPISODE_SUMMARY, decode
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.training.advantages.index import group_of, row_number, trajectory_of
from turnmill.training.advantages.rows import Rows
from turnmill.training.dataset import prompt_lengths, select

Summary = TypeVar("Summary", bound=EpisodeSummary)

DROPPED = "dropped"
"""Key of the `Dropped` tasks in a batch's `extra_info`."""


@dataclass(frozen=True)
class Dropped:
    """Tasks that were replaced because all of their trajectories had the same reward."""

    num_tasks: int = 0
    summaries: tuple[EpisodeSummary, ...] = ()
    """Summary of each trajectory."""


@dataclass(frozen=True)
class Split:
    """Trajectories of a batch: survivors, failed and dropped ones."""

    survivors: KVBatchMeta
    failed: KVBatchMeta
    dropped: Dropped = Dropped()

    @cached_property
    def failures(self) -> tuple[EpisodeFailure, ...]:
        """The failed trajectories."""
        return tuple(decode(tag[FAILURE], EpisodeFailure) for tag in self.failed.tags)

    @property
    def causes(self) -> Counter[str]:
        """Number of failed trajectories by cause."""
        return Counter(failure.cause for failure in self.failures)

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories that have ended, failed and dropped ones included."""
        return len(set(map(trajectory_of, self.survivors.keys))) + len(self.failed.keys) + len(self.dropped.summaries)

    @property
    def failed_ratio(self) -> float:
        """Share of trajectories that failed."""
        return len(self.failed.keys) / max(1, self.num_trajectories)

    def require_few_failures(self, limit: float, what: str) -> None:
        """Raise RunFailedError if the share of failed trajectories exceeds `limit`, or none survived.

        Its cause is `outage` if the limit would hold without trajectories that failed because something was away.
        """
        if self.survivors.keys and self.failed_ratio <= limit:
            return
        others = sum(count for cause, count in self.causes.items() if cause not in OUTAGE_CAUSES)
        passes = others < len(self.failed.keys) and others <= limit * self.num_trajectories
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.causes.most_common())
        message = self.failures[0].message if self.failures else ""
        raise RunFailedError(
            f"{what}: {len(self.failed.keys)} of {self.num_trajectories} trajectories failed ({causes}); "
            f"training.maxFailedRatio is {limit:g}. One of them: {message} "
            "`turnmill trajectories RUN_DIR --failed` shows them all.",
            "outage" if passes else "failed_ratio",
        )


def split(batch: KVBatchMeta) -> Split:
    """Separate failed trajectories, which have a key and a tag but no row, from the others."""
    failed = [tag.get("status") == FAILED for tag in batch.tags]
    dropped = batch.extra_info.get(DROPPED, Dropped())
    return Split(select(batch, [not f for f in failed]), select(batch, failed), dropped)


def last_rows(keys: Sequence[str]) -> list[int]:
    """Return the position of each trajectory's last row, in the order of the trajectories' first rows."""
    last: dict[str, int] = {}
    for position, key in enumerate(keys):
        known = last.get(trajectory_of(key))
        if known is None or row_number(keys[known]) < row_number(key):
            last[trajectory_of(key)] = position
    return list(last.values())


@dataclass(frozen=True)
class TrajectoryBatch:
    """The rows of one step, as padded tensors."""

    meta: KVBatchMeta
    mask_RG: Tensor
    scores_RG: Tensor
    old_log_probs_RG: Tensor
    ref_log_probs_RG: Tensor | None
    prompt_lengths_R: Tensor
    response_lengths_R: Tensor
    summaries: tuple[EpisodeSummary, ...]
    """Summary of each trajectory."""

    num_unsampled_tokens: int = 0
    """Number of trained tokens that differ from those that the engine sampled."""

    values_RG: Tensor | None = None
    """The critic's values."""

    @classmethod
    def read(cls, meta: KVBatchMeta, *, with_reference: bool, with_values: bool = False) -> "TrajectoryBatch":
        """Fetch a step's rows from the queue."""
        fields = ["responses", "response_mask", "rm_scores", "old_log_probs", EPISODE_SUMMARY]
        fields += ["ref_log_prob"] * with_reference + ["values"] * with_values
        data = tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=fields)
        summaries = read_summaries(meta.keys, data[EPISODE_SUMMARY], EpisodeSummary)
        return cls(
            meta=meta,
            mask_RG=_padded(data["response_mask"]),
            scores_RG=_padded(data["rm_scores"]),
            old_log_probs_RG=_padded(data["old_log_probs"]),
            ref_log_probs_RG=_padded(data["ref_log_prob"]) if with_reference else None,
            prompt_lengths_R=prompt_lengths(meta),
            response_lengths_R=data["responses"].offsets().diff(),
            summaries=summaries,
            num_unsampled_tokens=_count_unsampled(meta.keys, data["responses"], data["response_mask"], summaries),
            values_RG=_padded(data["values"]) if with_values else None,
        )

    def with_rewards(self, rewards_RG: Tensor) -> Rows:
        """Return the rows as input of an advantage estimator."""
        return Rows(
            keys=self.meta.keys,
            lengths_R=self.response_lengths_R,
            mask_RG=self.mask_RG,
            scores_RG=self.scores_RG,
            rewards_RG=rewards_RG,
            own_scores=all(summary.row_rewards for summary in self.summaries),
            values_RG=self.values_RG,
            states_R=self.states_R,
        )

    @property
    def states_R(self) -> tuple[str, ...]:  # noqa: N802 (named for its axis)
        """State before the turn of each row; empty if rows are no turns."""
        return tuple(
            summary.row_states[row_number(key)] if summary.rows_are_turns else ""
            for key, summary in zip(self.meta.keys, self._summaries_R, strict=True)
        )

    @property
    def _summaries_R(self) -> list[EpisodeSummary]:  # noqa: N802 (named for its axis)
        """Summary of each row's trajectory."""
        names = [trajectory_of(key) for key in self.meta.keys]
        of_trajectory = dict(zip((names[row] for row in last_rows(self.meta.keys)), self.summaries, strict=True))
        return [of_trajectory[name] for name in names]

    def by_trajectory(self, values_R: Tensor) -> dict[str, float]:
        """Return a value that all rows of a trajectory share, by episode id."""
        values_K = values_R[last_rows(self.meta.keys)].tolist()
        return {summary.episode_id: value for summary, value in zip(self.summaries, values_K, strict=True)}

    def by_turn(self, values_RG: Tensor) -> Iterator[TokenAdvantages]:
        """Yield episode id, number and token values of each turn, if rows are turns."""
        rows = zip(self.meta.keys, self._summaries_R, values_RG.numpy(), self.response_lengths_R.tolist(), strict=True)
        for key, summary, values_G, length in rows:
            if summary.rows_are_turns:
                yield summary.episode_id, row_number(key), values_G[:length]

    def response_lengths(self) -> Iterator[tuple[bool, float, float]]:
        """Yield success, generated tokens and turns of each trajectory."""
        tokens: Counter[str] = Counter()
        for key, count in zip(self.meta.keys, self.mask_RG.sum(1).tolist(), strict=True):
            tokens[trajectory_of(key)] += int(count)
        names = [trajectory_of(self.meta.keys[row]) for row in last_rows(self.meta.keys)]
        for name, summary in zip(names, self.summaries, strict=True):
            yield summary.success, tokens[name], summary.num_turns

    def write(self, advantages_RG: Tensor, returns_RG: Tensor, rewards_RG: Tensor) -> None:
        """Write advantages, returns and rewards to the queue, for verl's updates and metrics."""
        columns = {"advantages": advantages_RG, "returns": returns_RG, "token_level_rewards": rewards_RG}
        put_ragged(self.meta, columns, self.response_lengths_R)


def put_ragged(meta: KVBatchMeta, columns: Mapping[str, Tensor], lengths_R: Tensor) -> None:
    """Write padded columns to the queue, each row with its own length."""
    ragged = {
        name: torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(column, lengths_R.tolist(), strict=True)], layout=torch.jagged
        )
        for name, column in columns.items()
    }
    tq.kv_batch_put(
        keys=meta.keys, partition_id=meta.partition_id, fields=TensorDict(ragged, batch_size=len(meta.keys))
    )


def read_summaries(keys: Sequence[str], column: Iterable[object], kind: type[Summary]) -> tuple[Summary, ...]:
    """Return the summary of each trajectory from its last row, in the order of the trajectories' first rows."""
    values = list(column)
    return tuple(decode(values[row], kind) for row in last_rows(keys))


def fetch_summaries(batch: KVBatchMeta, kind: type[Summary]) -> tuple[Summary, ...]:
    """Fetch the summary of each trajectory of a batch from the queue."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[EPISODE_SUMMARY])
    return read_summaries(batch.keys, data[EPISODE_SUMMARY], kind)


def _count_unsampled(keys: Sequence[str], responses: Tensor, masks: Tensor, summaries: Sequence[EpisodeSummary]) -> int:
    ids, mask = responses.unbind(), masks.unbind()
    rows_of: dict[str, list[int]] = {}
    for row in sorted(range(len(keys)), key=lambda row: row_number(keys[row])):
        rows_of.setdefault(trajectory_of(keys[row]), []).append(row)
    names = [trajectory_of(keys[row]) for row in last_rows(keys)]
    return sum(
        count_unsampled_tokens(((ids[row].numpy(), mask[row].numpy()) for row in rows_of[name]), summary.sampled_tokens)
        for name, summary in zip(names, summaries, strict=True)
    )


def rewards_of_groups(keys: Sequence[str], summaries: Sequence[EpisodeSummary]) -> dict[str, set[float]]:
    """Return the distinct rewards of each group's trajectories."""
    rewards: dict[str, set[float]] = {}
    for row, summary in zip(last_rows(keys), summaries, strict=True):
        rewards.setdefault(group_of(keys[row]), set()).add(summary.reward)
    return rewards


def _padded(x: Tensor) -> Tensor:
    return x.to_padded_tensor(0) if x.is_nested else x
