"""Rows as training workers get them: their places in the queue, and the advantage that the tokens of each row share.

So the trainer sends a number per row and writes none per token, which at 250,000 rows of 2,000 tokens is 2 GB a column.

Axes: R rows.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta

from turnmill.training.row_places import SHAPES, places_of

ADVANTAGE = "advantage"
"""Tag with the row's advantage."""

RETURN = "return"
"""Tag with the row's return."""

REWARD = "reward"
"""Tag with the row's reward after penalties."""

_COLUMN = "row_advantages"
"""Name under which a worker's method gets the advantages of its rows, beside their columns."""

ROW_VALUES = "row_values"
"""Name in a batch's `extra_info` of lists with a value for each row, by name; a worker gets those of its rows."""


class WorkerRows(BatchMeta):
    """Places of a step's rows in the queue, which are dealt to workers with values of each row, by name.

    verl's own batch copies everything about all rows for every worker, and sends the tags as well.
    """

    __slots__ = ("row_values",)

    def __init__(self, places: BatchMeta, row_values: Mapping[str, Sequence[object]]) -> None:
        for name in BatchMeta.__slots__:
            setattr(self, name, getattr(places, name))
        self.row_values = row_values

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """Return the rows in as many parts; the first parts have a row more if they do not come out even."""
        size, larger = divmod(self.size, chunks)
        ends = accumulate((size + (part < larger) for part in range(chunks)), initial=0)
        return [self._part(slice(*part)) for part in pairwise(ends)]

    def _part(self, rows: slice) -> BatchMeta:
        schema = self.field_schema.items()
        part = BatchMeta(
            self.global_indexes[rows],
            self.partition_ids[rows],
            {name: field | ({SHAPES: field[SHAPES][rows]} if SHAPES in field else {}) for name, field in schema},
            self.production_status[rows],
            self.extra_info,
            _custom_backend_meta=self._custom_backend_meta[rows],
        )
        # Workers that write into the queue replace the tags of their rows by these, if there are any.
        part.custom_meta = []
        part.extra_info |= {name: values[rows] for name, values in self.row_values.items()}
        return part


def to_workers(batch: KVBatchMeta) -> BatchMeta:
    """Return the batch as it is dealt to workers, with the advantage of each row if the tags have it."""
    places = places_of(batch) or kv_batch_meta2batch_meta(batch)
    values = dict(places.extra_info.pop(ROW_VALUES, {}))
    if batch.tags and ADVANTAGE in batch.tags[0]:
        values[_COLUMN] = [tag[ADVANTAGE] for tag in batch.tags]
    return WorkerRows(places, values)


def fill_in_advantages(data: TensorDict) -> None:
    """Give each trained token the advantage of its row, and other tokens 0; nothing to do for rows without one."""
    if _COLUMN not in data.keys():  # noqa: SIM118 (a TensorDict)
        return
    advantages_R = torch.tensor(data.pop(_COLUMN).data)
    mask = data["response_mask"]
    lengths_R = mask.offsets().diff()
    values = advantages_R.repeat_interleave(lengths_R) * mask.values()
    data["advantages"] = torch.nested.nested_tensor_from_jagged(values, mask.offsets())
