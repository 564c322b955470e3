"""A step's rows in the order of time, and what they say of the episodes in them.

Axes: R rows (time-major: row = time * segments + segment; the last ones are the bootstrap rows), G response tokens,
padded by one slot where there is room.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.jobs import AgentTrainingJob
from turnmill.observability.step_parts import IN_FLIGHT, ROLLOUT, SLOTS
from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verlog.rows import FACTS
from turnmill.rollout.verlog.slot import episode_name
from turnmill.training.batches.rewards import reward_quantiles


@dataclass(frozen=True)
class TurnBatch:
    """One step's turns and their bootstrap rows, as padded tensors."""

    meta: KVBatchMeta
    """The rows in the order of time, bootstrap rows last."""

    num_segments: int
    num_turns: int
    """Rows that are turns; the rest are bootstrap rows."""

    facts_RF: Tensor
    mask_RG: Tensor
    values_RG: Tensor
    num_slots_R: Tensor
    response_lengths_R: Tensor
    prompt_lengths_R: Tensor
    scores_RG: Tensor
    """Of the turns alone, like the two that follow."""

    old_log_probs_RG: Tensor
    ref_log_probs_RG: Tensor

    num_foreign_tokens: int = 0
    """Trained tokens that are not those which the engine sampled."""

    @property
    def dones_R(self) -> Tensor:  # noqa: N802 (named for its axis)
        """1 where an episode ended."""
        return self.facts_RF[:, FACTS["done"]]

    def fact(self, name: str) -> Tensor:
        """One fact of every turn, bootstrap rows left out."""
        return self.facts_RF[: self.num_turns, FACTS[name]]

    @classmethod
    def read(cls, batch: KVBatchMeta, job: AgentTrainingJob) -> "TurnBatch":
        """Fetch a step's rows and put them in order."""
        meta, num_segments = in_order_of_time(batch)
        turns_per_segment = len(meta.keys) // num_segments - 1
        num_turns = num_segments * turns_per_segment
        common = tq.kv_batch_get(
            keys=meta.keys,
            partition_id=meta.partition_id,
            select_fields=["prompts", "responses", "response_mask", "slot_values", "turn_facts"],
        )
        fields = ["rm_scores", "old_log_probs"]
        with_reference = job.spec.kl.coefficient > 0
        turns = tq.kv_batch_get(
            keys=meta.keys[:num_turns],
            partition_id=meta.partition_id,
            select_fields=[*fields, "ref_log_prob"] if with_reference else fields,
        )
        lengths = common["responses"].offsets().diff()
        num_slots = common["slot_values"].offsets().diff()
        width = int(num_slots.max())
        padded = {name: _pad(turns[name], width) for name in turns.keys()}  # noqa: SIM118 (a TensorDict)
        return cls(
            meta=meta,
            num_segments=num_segments,
            num_turns=num_turns,
            facts_RF=as_matrix(common["turn_facts"]),
            mask_RG=_pad(common["response_mask"], width),
            values_RG=_pad(common["slot_values"], width),
            num_slots_R=num_slots,
            response_lengths_R=lengths,
            prompt_lengths_R=common["prompts"].offsets().diff(),
            scores_RG=padded["rm_scores"],
            old_log_probs_RG=padded["old_log_probs"],
            ref_log_probs_RG=padded.get("ref_log_prob", padded["old_log_probs"]),
            num_foreign_tokens=count_unsampled_tokens(common, num_turns),
        )

    def with_bootstrap_rows(self, x_RG: Tensor) -> Tensor:
        """Rows of turns, followed by a zero row for each bootstrap row."""
        return torch.cat([x_RG, x_RG.new_zeros(self.num_segments, x_RG.shape[1])])

    def token_advantages(self, advantages_RG: Tensor) -> Iterator[tuple[str, int, list[float]]]:
        """The advantages of the response tokens of each turn, with its episode and its number."""
        names = zip(self.fact("slot").tolist(), self.fact("episode").tolist(), self.fact("turn").tolist(), strict=True)
        lengths = self.response_lengths_R[: self.num_turns].tolist()
        for (slot, episode, turn), length, values in zip(names, lengths, advantages_RG.tolist(), strict=False):
            yield episode_name("training", int(slot), int(episode)), int(turn), values[:length]

    def write(self, advantages_RG: Tensor, returns_RG: Tensor, rewards_RG: Tensor) -> None:
        """Put the advantages and returns of the turns where verl's updates look for them."""
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


def in_order_of_time(batch: KVBatchMeta) -> tuple[KVBatchMeta, int]:
    """The rows by time, then by segment, and the number of segments; keys read {segment}_{session}_{time}."""
    parsed = [(int(key.rsplit("_", 2)[2]), key.rsplit("_", 2)[0], i) for i, key in enumerate(batch.keys)]
    order = [i for _, _, i in sorted(parsed)]
    meta = KVBatchMeta(
        partition_id=batch.partition_id, keys=[batch.keys[i] for i in order], tags=[batch.tags[i] for i in order]
    )
    return meta, len({segment for _, segment, _ in parsed})


def count_unsampled_tokens(columns: TensorDict, num_turns: int) -> int:
    """Tokens of the turns whose checksum is not that of what was sampled."""
    facts_RF = as_matrix(columns["turn_facts"])
    rows = zip(columns["responses"].unbind(), columns["response_mask"].unbind(), facts_RF, strict=True)
    foreign = 0
    for ids, mask, facts_F in islice(rows, num_turns):
        trained = ids[mask.bool()].tolist()
        foreign += len(trained) if token_checksum(trained) != int(facts_F[FACTS["sampled"]]) else 0
    return foreign


def turn_metrics(turns: TurnBatch, rewards_RG: Tensor) -> dict[str, float]:
    """What the turns of a step say of the episodes in them; success and length are of the episodes that ended."""
    ended = turns.fact("done") > 0
    truncated = turns.fact("truncated") > 0
    rewards = turns.fact("reward")
    failures = float(turns.facts_RF[:, FACTS["failures"]].sum())
    inference = float(turns.facts_RF[:, FACTS["inference_failures"]].sum())
    mask_RG = turns.mask_RG[: turns.num_turns]
    metrics: dict[str, Any] = {
        "turnmill/turns": turns.num_turns,
        "turnmill/prompt_tokens": float(turns.prompt_lengths_R[: turns.num_turns].sum()),
        "turnmill/response_tokens": float(mask_RG.sum()),
        "turnmill/turn_reward_mean": rewards.mean().item(),
        "turnmill/token_reward_mean": (rewards_RG * mask_RG).sum(1).mean().item(),
        "turnmill/valid_action_ratio": turns.fact("valid").mean().item(),
        "turnmill/plan_length": turns.fact("plan_length").mean().item(),
        "turnmill/backtrack_length": turns.fact("backtrack_length").mean().item(),
        "turnmill/episodes/completed": float((ended & ~truncated).sum()),
        "turnmill/episodes/max_turns": float((ended & truncated).sum()),
        "turnmill/episodes/failed": failures,
        "turnmill/failures/inference": inference,
        "turnmill/failures/environment": failures - inference,
        "turnmill/token_mismatches": turns.num_foreign_tokens,
        SLOTS: turns.num_segments,
        **{f"{ROLLOUT}{part}": float(turns.facts_RF[:, FACTS[f"{part}_seconds"]].sum()) for part in IN_FLIGHT},
    }
    if bool(ended.any()):
        metrics["turnmill/success"] = (rewards[ended] > 0).double().mean().item()
        metrics["turnmill/episode_length"] = turns.fact("episode_length")[ended].mean().item()
        metrics["turnmill/reward_mean"] = turns.fact("episode_reward")[ended].mean().item()
        metrics |= reward_quantiles(turns.fact("episode_reward")[ended])
    return metrics


def validation_metrics(facts_RF: Tensor) -> dict[str, float]:
    """Averages over whole episodes, one row each."""
    column = {name: facts_RF[:, position] for name, position in FACTS.items()}
    return {
        "validation/episodes": float(facts_RF.shape[0]),
        "validation/success": (column["reward"] > 0).double().mean().item(),
        "validation/reward": column["episode_reward"].mean().item(),
        "validation/episode_length": column["episode_length"].mean().item(),
        "validation/valid_action_ratio": column["valid"].mean().item(),
        "validation/failures": column["failures"].sum().item(),
    }


def as_matrix(x: Tensor) -> Tensor:
    """Rows of equal length, which the TransferQueue hands out as a nested tensor."""
    return x.to_padded_tensor(0) if x.is_nested else x


def _pad(x: Tensor, width: int) -> Tensor:
    padded = as_matrix(x)
    return (
        torch.nn.functional.pad(padded, (0, width - padded.shape[1])) if padded.shape[1] < width else padded[:, :width]
    )


def _ragged(x_RG: Tensor, lengths_R: Tensor) -> Tensor:
    rows = [row[:length] for row, length in zip(x_RG, lengths_R.tolist(), strict=False)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
