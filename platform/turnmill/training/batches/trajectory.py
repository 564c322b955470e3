"""A step's trajectories: those that can be learned from, those that failed, and what they say of the step.

Axes: R rows, G response tokens, K trajectories; a trajectory whose context rolled over has several rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.core.errors import RunFailedError
from turnmill.rollout.failure import FAILED
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.training.advantages.index import group_of, row_number, trajectory_of
from turnmill.training.advantages.rows import Rows
from turnmill.training.dataset import select

DROPPED = "dropped"
"""Where a batch tells what it went without."""


@dataclass(frozen=True)
class Dropped:
    """Tasks that made room for others: all of their trajectories had the same reward."""

    num_tasks: int = 0
    trajectories: tuple[Mapping[str, Any], ...] = ()
    """What the agent loop tells of each trajectory."""


@dataclass(frozen=True)
class Split:
    """A batch as it came, taken apart."""

    survivors: KVBatchMeta
    failed: KVBatchMeta
    dropped: Dropped = Dropped()

    @property
    def causes(self) -> Counter[str]:
        """How many trajectories failed, by what broke."""
        return Counter(str(tag["cause"]) for tag in self.failed.tags)

    @property
    def num_trajectories(self) -> int:
        """Trajectories that ended, one way or another."""
        return (
            len(set(map(trajectory_of, self.survivors.keys))) + len(self.failed.keys) + len(self.dropped.trajectories)
        )

    @property
    def failed_ratio(self) -> float:
        """Share of them that failed."""
        return len(self.failed.keys) / max(1, self.num_trajectories)

    def require_few_failures(self, limit: float, what: str) -> None:
        """Raise RunFailedError where infrastructure, and not the agent, decides how trajectories end."""
        if self.survivors.keys and self.failed_ratio <= limit:
            return
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.causes.most_common())
        message = self.failed.tags[0]["message"] if self.failed.tags else ""
        raise RunFailedError(
            f"{what}: {len(self.failed.keys)} of {self.num_trajectories} trajectories failed ({causes}); "
            f"training.maxFailedRatio is {limit:g}. One of them: {message} "
            "`turnmill trajectories RUN_DIR --failed` shows them all.",
            "failed_ratio",
        )


def split(batch: KVBatchMeta) -> Split:
    """Take failed trajectories out: they have a key and a tag, and no row."""
    failed = [tag.get("status") == FAILED for tag in batch.tags]
    dropped = batch.extra_info.get(DROPPED, Dropped())
    return Split(select(batch, [not f for f in failed]), select(batch, failed), dropped)


def last_rows(keys: Sequence[str]) -> list[int]:
    """The position of each trajectory's last row, in the order in which the trajectories come."""
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
    trajectories: tuple[Mapping[str, Any], ...]
    """What the agent loop tells of each trajectory."""

    num_foreign_tokens: int = 0
    """Trained tokens that are not those which the engine sampled."""

    values_RG: Tensor | None = None
    """What a critic says."""

    states_R: tuple[str, ...] = ()
    """What each row's turn began with, where rows are turns."""

    @classmethod
    def read(cls, meta: KVBatchMeta, *, with_reference: bool, with_values: bool = False) -> "TrajectoryBatch":
        """Fetch a step's rows."""
        fields = ["prompts", "responses", "response_mask", "rm_scores", "old_log_probs", "extra_fields"]
        fields += ["ref_log_prob"] * with_reference + ["values"] * with_values
        data = tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=fields)
        trajectories = told_trajectories(meta.keys, data["extra_fields"])
        return cls(
            meta=meta,
            mask_RG=_padded(data["response_mask"]),
            scores_RG=_padded(data["rm_scores"]),
            old_log_probs_RG=_padded(data["old_log_probs"]),
            ref_log_probs_RG=_padded(data["ref_log_prob"]) if with_reference else None,
            prompt_lengths_R=data["prompts"].offsets().diff(),
            response_lengths_R=data["responses"].offsets().diff(),
            trajectories=trajectories,
            num_foreign_tokens=_count_foreign(meta.keys, data["responses"], data["response_mask"], trajectories),
            values_RG=_padded(data["values"]) if with_values else None,
            states_R=tuple(str(_plain(value).get("state", "")) for value in data["extra_fields"]),
        )

    def with_rewards(self, rewards_RG: Tensor) -> Rows:
        """What advantages are made of."""
        return Rows(
            keys=self.meta.keys,
            lengths_R=self.response_lengths_R,
            mask_RG=self.mask_RG,
            scores_RG=self.scores_RG,
            rewards_RG=rewards_RG,
            own_scores=all(told.get("own_scores", False) for told in self.trajectories),
            values_RG=self.values_RG,
            states_R=self.states_R,
        )

    def by_trajectory(self, values_R: Tensor) -> dict[str, float]:
        """A value of each trajectory, which all of its rows have, by the trajectory's name."""
        values_K = values_R[last_rows(self.meta.keys)].tolist()
        return {told["name"]: value for told, value in zip(self.trajectories, values_K, strict=True)}

    def by_turn(self, values_RG: Tensor) -> Iterator[tuple[str, int, list[float]]]:
        """The values of the tokens of every turn, where turns are rows, with episode and number of the turn."""
        last = (trajectory_of(self.meta.keys[row]) for row in last_rows(self.meta.keys))
        told_of = dict(zip(last, self.trajectories, strict=True))
        lengths = self.response_lengths_R.tolist()
        for key, values_G, length in zip(self.meta.keys, values_RG, lengths, strict=True):
            if (told := told_of[trajectory_of(key)]).get("turn_rows"):
                yield told["name"], row_number(key), values_G[:length].tolist()

    def write(self, advantages_RG: Tensor, returns_RG: Tensor, rewards_RG: Tensor) -> None:
        """Put advantages, returns and rewards where verl's updates and its metrics look for them."""
        columns = {"advantages": advantages_RG, "returns": returns_RG, "token_level_rewards": rewards_RG}
        put_ragged(self.meta, columns, self.response_lengths_R)


def put_ragged(meta: KVBatchMeta, columns: Mapping[str, Tensor], lengths_R: Tensor) -> None:
    """Write padded columns as rows of their own lengths."""
    ragged = {
        name: torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(column, lengths_R.tolist(), strict=True)], layout=torch.jagged
        )
        for name, column in columns.items()
    }
    tq.kv_batch_put(
        keys=meta.keys, partition_id=meta.partition_id, fields=TensorDict(ragged, batch_size=len(meta.keys))
    )


def told_trajectories(keys: Sequence[str], extra_fields: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """What the agent loop tells of each trajectory, once for each."""
    told = [_plain(value)["trajectory"] for value in extra_fields]
    return tuple(told[row] for row in last_rows(keys))


def _plain(extra_fields: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(extra_fields, "data", extra_fields)
    return found


def _count_foreign(
    keys: Sequence[str], responses: Tensor, masks: Tensor, trajectories: Sequence[Mapping[str, Any]]
) -> int:
    ids, mask = responses.unbind(), masks.unbind()
    rows_of: dict[str, list[int]] = {}
    for row in sorted(range(len(keys)), key=lambda row: row_number(keys[row])):
        rows_of.setdefault(trajectory_of(keys[row]), []).append(row)
    names = [trajectory_of(keys[row]) for row in last_rows(keys)]
    return sum(
        count_unsampled_tokens(((ids[row].tolist(), mask[row].tolist()) for row in rows_of[name]), told["sampled"])
        for name, told in zip(names, trajectories, strict=True)
    )


def rewards_of_groups(keys: Sequence[str], trajectories: Sequence[Mapping[str, Any]]) -> dict[str, set[float]]:
    """The different rewards of each group's trajectories."""
    rewards: dict[str, set[float]] = {}
    for row, told in zip(last_rows(keys), trajectories, strict=True):
        rewards.setdefault(group_of(keys[row]), set()).add(told["reward"])
    return rewards


def _padded(x: Tensor) -> Tensor:
    return x.to_padded_tensor(0) if x.is_nested else x
