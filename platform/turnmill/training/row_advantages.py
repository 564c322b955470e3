"""Advantages that all tokens of a row share: a tag of the row, from which training workers fill in its tokens.

So the trainer writes a number per row, not one per token, which at 250,000 rows of 2,000 tokens is 2 GB per column.

Axes: R rows.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta

ADVANTAGE = "advantage"
"""Tag with the row's advantage."""

RETURN = "return"
"""Tag with the row's return."""

REWARD = "reward"
"""Tag with the row's reward after penalties."""

_COLUMN = "row_advantages"
"""Name under which a worker's method gets the advantages of its rows, beside their columns."""

Method = Callable[..., Any]


def to_workers(batch: KVBatchMeta) -> BatchMeta:
    """Return the batch as verl sends it to workers, with the advantage of each row.

    verl itself leaves tags out when it divides a batch among workers.
    """
    sent: BatchMeta = kv_batch_meta2batch_meta(batch)
    sent.update_custom_meta([{ADVANTAGE: tag[ADVANTAGE]} for tag in batch.tags])
    return sent


def with_row_advantages(method: Method) -> Method:
    """Pass the advantages of its rows on to a worker's method, which verl calls with columns alone."""

    @wraps(method)
    def call(worker: object, batch: Any) -> Any:
        if isinstance(batch, BatchMeta) and batch.custom_meta and ADVANTAGE in batch.custom_meta[0]:
            batch.extra_info[_COLUMN] = [row[ADVANTAGE] for row in batch.custom_meta]
        return method(worker, batch)

    return call


def fill_in_advantages(data: TensorDict) -> None:
    """Give each trained token the advantage of its row, and other tokens 0; nothing to do for rows without one."""
    if _COLUMN not in data.keys():  # noqa: SIM118 (a TensorDict)
        return
    advantages_R = torch.tensor(data.pop(_COLUMN).data)
    mask = data["response_mask"]
    lengths_R = mask.offsets().diff()
    values = advantages_R.repeat_interleave(lengths_R) * mask.values()
    data["advantages"] = torch.nested.nested_tensor_from_jagged(values, mask.offsets())
