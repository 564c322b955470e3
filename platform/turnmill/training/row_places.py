"""Places of rows in verl's queue, which training workers and the clearing of a step need.

Axes: R rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import BatchMeta, KVBatchMeta
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

SHAPES = "per_sample_shapes"
"""The queue's name for the shape of a column in each row."""

_known: dict[str, tuple[Sequence[str], Tensor]] = {}
"""Keys of the last batch of each partition, and the numbers by which the queue knows these rows until it drops them."""


def places_of(batch: KVBatchMeta) -> BatchMeta | None:
    """Return the places of rows in the queue's own storage, and the columns of the first one.

    None if other rows lack some of them, or if the storage needs more. The queue's own answer has all tags, and the
    shape of each row's columns, which takes ten times as long.
    """
    client, partition = tq.get_client(), batch.partition_id
    if not isinstance(client.storage_manager, AsyncSimpleStorageManager):
        return None
    first = client.kv_retrieve_meta(keys=batch.keys[:1], partition_id=partition)
    if batch.fields is not None:
        first = first.select_fields(batch.fields)
    present, produced = client.get_production_status(data_fields=first.field_names, partition_id=partition)
    if present is None:
        return None
    indexes_R = _indexes_of(batch.keys, partition, present)
    order = present.argsort()
    rows_R = order[torch.searchsorted(present[order], indexes_R).clamp(max=len(order) - 1)]
    if not present[rows_R].equal(indexes_R) or not produced[rows_R].all():
        return None
    return BatchMeta(
        indexes_R.tolist(),
        [partition] * len(indexes_R),
        {name: {key: field[key] for key in field if key != SHAPES} for name, field in first.field_schema.items()},
        np.ones(len(indexes_R), np.int8),
        batch.extra_info,
    )


def clear(batch: KVBatchMeta) -> None:
    """Drop rows from the queue, whose own function reads first all that it knows of them."""
    places = places_of(batch)
    _known.pop(batch.partition_id, None)
    if places is None:
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
    else:
        tq.get_client().clear_samples(places)


def _indexes_of(keys: Sequence[str], partition: str, present: Tensor) -> Tensor:
    """Return the queue's numbers of rows, which it is asked for once, not at each call of workers with these rows."""
    known, indexes_R = _known.get(partition, ((), present[:0]))
    others = len(known) - len(keys)
    if others < 0 or known[others:] != keys:
        indexes = present.tolist()
        found = tq.get_client().kv_retrieve_keys(global_indexes=indexes, partition_id=partition)
        every = dict(zip(found, indexes, strict=True))
        others, indexes_R = 0, torch.tensor([every[key] for key in keys])
        _known[partition] = [*keys], indexes_R
    return indexes_R[others:]
