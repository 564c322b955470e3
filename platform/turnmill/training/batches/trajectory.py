"""Trajectories of a step: those to train on with their rows, and those that failed.

Axes: R rows, G response tokens, K trajectories; a trajectory whose context rolled over has several rows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.core.errors import OUTAGE_CAUSES, RunFailedError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.observability.advantage_log import TokenAdvantages
from turnmill.rollout.failure import FAILED, FAILURE
from turnmill.rollout.queue_payload import decode, decode_all
from turnmill.rollout.row_tags import EPISODE, SCORE, TRAINED_TOKENS, UNSAMPLED_TOKENS
from turnmill.training.advantages.index import TrajectoryIndex, group_of, row_number, trajectory_of
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.advantages.rows import Rows
from turnmill.training.batches.ragged import padded, put_ragged
from turnmill.training.dataset import LENGTHS, select, tag_columns
from turnmill.training.row_advantages import ADVANTAGE, RETURN, REWARD

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

    @cached_property
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
    names = [trajectory_of(key) for key in keys]
    if len(set(names)) == len(names):
        return [*range(len(names))]
    last: dict[str, int] = {}
    for position, (name, key) in enumerate(zip(names, keys, strict=True)):
        known = last.get(name)
        if known is None or row_number(keys[known]) < row_number(key):
            last[name] = position
    return list(last.values())


@dataclass(frozen=True)
class TrajectoryBatch:
    """The rows of one step, as padded tensors.

    Where all tokens of a row have the same advantage, a row has one position, which stands for its trained tokens
    (G = 1), and everything comes from the rows' tags: see `of_tags`. Otherwise the tokens are read from the queue.
    """

    meta: KVBatchMeta
    mask_RG: Tensor
    scores_RG: Tensor
    prompt_lengths_R: Tensor
    response_lengths_R: Tensor
    trained_R: Tensor
    """Number of each row's tokens that are trained on."""

    summaries: tuple[EpisodeSummary, ...]
    """Summary of each trajectory."""

    num_unsampled_tokens: int = 0
    """Number of trained tokens that differ from those that the engine sampled."""

    old_log_probs_RG: Tensor | None = None
    ref_log_probs_RG: Tensor | None = None
    """The reference model's log-probs; this and the trainer's are read where the reward has a KL penalty."""

    values_RG: Tensor | None = None
    """The critic's values."""

    has_tokens: bool = True
    """False if a row has a single position."""

    @classmethod
    def read(cls, meta: KVBatchMeta, *, with_reference: bool, with_values: bool = False) -> "TrajectoryBatch":
        """Fetch the tokens of a step's rows from the queue."""
        fields = ["response_mask", "rm_scores", *["old_log_probs", "ref_log_prob"] * with_reference]
        data = tq.kv_batch_get(
            keys=meta.keys, partition_id=meta.partition_id, select_fields=[*fields, *["values"] * with_values]
        )
        prompts_R, responses_R, trained_R = tag_columns(meta, *LENGTHS, TRAINED_TOKENS)
        return cls(
            meta=meta,
            mask_RG=padded(data["response_mask"]),
            scores_RG=padded(data["rm_scores"]),
            old_log_probs_RG=padded(data["old_log_probs"]) if with_reference else None,
            ref_log_probs_RG=padded(data["ref_log_prob"]) if with_reference else None,
            prompt_lengths_R=prompts_R.long(),
            response_lengths_R=responses_R.long(),
            trained_R=trained_R.long(),
            summaries=read_summaries(meta, EpisodeSummary),
            num_unsampled_tokens=_unsampled_tokens(meta),
            values_RG=padded(data["values"]) if with_values else None,
        )

    @classmethod
    def of_tags(cls, meta: KVBatchMeta) -> "TrajectoryBatch":
        """Return a step's rows with one position each; nothing is read from the queue."""
        prompts_R, responses_R, trained_R, scores_R = tag_columns(meta, *LENGTHS, TRAINED_TOKENS, SCORE)
        return cls(
            meta=meta,
            mask_RG=(trained_R > 0).long()[:, None],
            scores_RG=scores_R.float()[:, None],
            prompt_lengths_R=prompts_R.long(),
            response_lengths_R=responses_R.long(),
            trained_R=trained_R.long(),
            summaries=read_summaries(meta, EpisodeSummary),
            num_unsampled_tokens=_unsampled_tokens(meta),
            has_tokens=False,
        )

    @property
    def lengths_R(self) -> Tensor:  # noqa: N802 (named for its axis)
        """Number of each row's positions."""
        return self.response_lengths_R if self.has_tokens else torch.ones_like(self.response_lengths_R)

    @property
    def weights_RG(self) -> Tensor:  # noqa: N802 (named for its axes)
        """Number of trained tokens that each position stands for."""
        return self.mask_RG if self.has_tokens else self.trained_R[:, None]

    def with_rewards(self, rewards_RG: Tensor) -> Rows:
        """Return the rows as input of an advantage estimator."""
        return Rows(
            keys=self.meta.keys,
            lengths_R=self.lengths_R,
            mask_RG=self.mask_RG,
            scores_RG=self.scores_RG,
            rewards_RG=rewards_RG,
            own_scores=all(summary.row_rewards for summary in self.summaries),
            values_RG=self.values_RG,
            states_R=self.states_R,
            known_index=self._index,
        )

    def at_last_tokens(self, values_R: Tensor) -> Tensor:
        """Place a value of each row at the row's last token, shape (rows, response tokens)."""
        values_RG = torch.zeros_like(at_least_float32(self.scores_RG))
        values_RG[torch.arange(len(values_R)), self.lengths_R - 1] = values_R.to(values_RG.dtype)
        return values_RG

    @property
    def states_R(self) -> tuple[str, ...]:  # noqa: N802 (named for its axis)
        """State before the turn of each row; empty if rows are no turns."""
        if not any(summary.rows_are_turns for summary in self.summaries):
            return ("",) * len(self.meta.keys)
        return tuple(
            summary.row_states[row_number(key)] if summary.rows_are_turns else ""
            for key, summary in zip(self.meta.keys, self._summaries_R, strict=True)
        )

    @cached_property
    def _index(self) -> TrajectoryIndex:
        """The rows of each trajectory."""
        return TrajectoryIndex.of(self.meta.keys, self.lengths_R)

    @property
    def groups_K(self) -> list[str]:  # noqa: N802 (named for its axis)
        """Task of each trajectory."""
        return [group_of(self.meta.keys[row]) for row in self._index.last_rows]

    @property
    def _summaries_R(self) -> list[EpisodeSummary]:  # noqa: N802 (named for its axis)
        """Summary of each row's trajectory."""
        return [self.summaries[number] for number in self._index.trajectory_of_row.tolist()]

    def by_trajectory(self, values_R: Tensor) -> dict[str, float]:
        """Return a value that all rows of a trajectory share, by episode id."""
        values_K = values_R[self._index.last_rows].tolist()
        return {summary.episode_id: value for summary, value in zip(self.summaries, values_K, strict=True)}

    def by_turn(self, values_RG: Tensor) -> Iterator[TokenAdvantages]:
        """Yield episode id, number and token values of each turn, if rows are turns."""
        if not any(summary.rows_are_turns for summary in self.summaries):
            return
        rows = zip(self.meta.keys, self._summaries_R, self.by_token(values_RG), strict=True)
        for key, summary, values_G in rows:
            if summary.rows_are_turns:
                yield summary.episode_id, row_number(key), values_G

    def by_token(self, values_RG: Tensor) -> Iterator[npt.NDArray[np.floating]]:
        """Yield the values of each row's response tokens."""
        for values_G, length in zip(values_RG.numpy(), self.response_lengths_R.tolist(), strict=True):
            yield values_G[:length] if self.has_tokens else np.full(length, values_G[0])

    @property
    def trained_K(self) -> Tensor:  # noqa: N802 (named for its axis)
        """Number of each trajectory's tokens that are trained on."""
        of_row = self._index.trajectory_of_row
        return self.trained_R.new_zeros(len(self.summaries)).index_add_(0, of_row, self.trained_R)

    def write(self, advantages_RG: Tensor, returns_RG: Tensor, rewards_RG: Tensor) -> None:
        """Write advantages, returns and rewards of tokens to the queue, for verl's updates and metrics.

        Those of whole rows become tags: see `with_advantages`.
        """
        if self.has_tokens:
            columns = {"advantages": advantages_RG, "returns": returns_RG, "token_level_rewards": rewards_RG}
            put_ragged(self.meta, columns, self.response_lengths_R)


def read_summaries(batch: KVBatchMeta, kind: type[Summary]) -> tuple[Summary, ...]:
    """Return the summary of each trajectory from its last row's tag, in the order of the trajectories' first rows."""
    return decode_all([batch.tags[row][EPISODE] for row in last_rows(batch.keys)], kind)


def with_advantages(
    batch: KVBatchMeta, rows: KVBatchMeta, advantages_R1: Tensor, returns_R1: Tensor, rewards_R1: Tensor
) -> KVBatchMeta:
    """Tag the rows of a batch with their advantages, returns and rewards, and rows that fill it up with 0.

    By these tags the workers fill in the advantages of tokens: see `row_advantages`.
    """
    columns_R = (values_R1[:, 0].tolist() for values_R1 in (advantages_R1, returns_R1, rewards_R1))
    of_rows = dict(zip(rows.keys, zip(*columns_R, strict=True), strict=True))
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        tag[ADVANTAGE], tag[RETURN], tag[REWARD] = of_rows.get(key, (0.0, 0.0, 0.0))
    return batch


def _unsampled_tokens(batch: KVBatchMeta) -> int:
    return int(sum([tag.get(UNSAMPLED_TOKENS, 0) for tag in batch.tags]))
