"""A TransferQueue in memory: rows by their keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transfer_queue import KVBatchMeta


class RowQueue:
    """The part of the TransferQueue's interface that trainers use."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}

    def add(self, key: str, tags: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Put a row; lists of numbers become tensors."""
        self.tags[key] = dict(tags or {})
        self.rows[key] = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in fields.items()}

    def meta(self) -> KVBatchMeta:
        """Return all rows as a batch, with the lengths of prompts and responses in the tags as verl puts them."""
        names = {"prompt_len": "prompts", "response_len": "responses"}
        tags = [
            {tag: len(row[name]) for tag, name in names.items() if name in row} | self.tags[key]
            for key, row in self.rows.items()
        ]
        return KVBatchMeta(partition_id="train", keys=[*self.rows], tags=tags)

    def kv_batch_get(self, *, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> dict[str, Any]:
        """Return columns of some rows; tensors as nested tensors."""
        return {name: self._column([self.rows[key][name] for key in keys]) for name in select_fields}

    def kv_batch_put(self, *, keys: Sequence[str], partition_id: str, fields: Any) -> None:
        """Add or replace columns of rows."""
        for name in list(fields.keys()):
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value

    def kv_clear(self, *, keys: Sequence[str], partition_id: str) -> None:
        """Drop rows."""
        for key in keys:
            del self.rows[key]

    def _column(self, values: list[Any]) -> Any:
        if not isinstance(values[0], torch.Tensor):
            return values
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
