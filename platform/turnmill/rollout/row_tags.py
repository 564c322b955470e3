"""Tags of the rows of whole episodes: what the trainer computes a step from, so that tokens stay in the queue."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
import transfer_queue as tq

from turnmill.core.trajectory import EpisodeSummary
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import BatchRow

EPISODE = "episode"
"""Tag with the encoded `EpisodeSummary`, without the sampled tokens; only an episode's last row has it."""

SCORE = "score"
"""Tag with the sum of the row's rewards."""

TRAINED_TOKENS = "trained_tokens"
"""Tag with the number of the row's tokens that are trained on."""

UNSAMPLED_TOKENS = "unsampled_tokens"
"""Tag with the number of trained tokens of the episode that differ from the sampled ones; on its last row."""

NUM_TURNS = "num_turns"
"""Tag with verl's number of turns, which counts messages."""


async def tag_rows(rows: Sequence[AgentLoopOutput], *, validate: bool, **row: Unpack[BatchRow]) -> None:
    """Put the tags of an episode's rows into the queue, before the rows, whose own tags are added to them."""
    await tq.async_kv_batch_put(
        keys=[f"{row['uid']}_{row['session_id']}_{number}" for number in range(len(rows))],
        partition_id="val" if validate else "train",
        tags=tags_of(rows),
    )


def tags_of(rows: Sequence[AgentLoopOutput]) -> list[dict[str, object]]:
    """Return the tags of an episode's rows; the last row has the episode's summary."""
    summary: EpisodeSummary = rows[-1].episode_summary  # type: ignore[attr-defined]
    tags = [_tags_of_row(row, rows[-1].reward_score) for row in rows]
    trained = ((row.response_ids, row.response_mask) for row in rows)
    tags[-1] |= {
        EPISODE: encode(replace(summary, sampled_tokens=b"")),
        UNSAMPLED_TOKENS: count_unsampled_tokens(trained, summary.sampled_tokens),
    }
    return tags


def _tags_of_row(row: AgentLoopOutput, reward: float | None) -> dict[str, object]:
    # verl gives the reward of the last row to all, where it is not None.
    score = row.as_dict()["rm_scores"].sum() if reward is None else torch.tensor(reward, dtype=torch.float32)
    return {SCORE: float(score), TRAINED_TOKENS: sum(row.response_mask), NUM_TURNS: row.num_turns}
