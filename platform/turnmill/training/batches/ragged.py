"""Columns whose rows have lengths of their own: padded in computations, nested in verl's queue."""

from collections.abc import Mapping

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta


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


def padded(x: Tensor) -> Tensor:
    """Return a nested tensor padded with 0; any other stays."""
    return x.to_padded_tensor(0) if x.is_nested else x
