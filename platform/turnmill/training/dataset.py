"""verl's data sets of prompts, with a row per environment slot or per task of a step, and selection of rows."""

import asyncio
from collections.abc import Sequence
from itertools import compress
from operator import itemgetter

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import Dataset
from transfer_queue import KVBatchMeta

from turnmill.rollout.task_images import images_in
from turnmill.training.shared_tags import SharedTags
from turnmill.training.verl.types import Row

LENGTHS = ("prompt_len", "response_len")
"""Tags with the number of a row's tokens."""


class _Rows(Dataset[Row]):
    """Data set of numbered rows, with the constructor of verl's data sets."""

    def __init__(
        self,
        data_files: object,
        tokenizer: object,
        config: object,
        processor: object = None,
        max_samples: int = -1,
        **_: object,
    ) -> None:
        self.num_rows = max(1, max_samples)

    def __len__(self) -> int:
        return self.num_rows


class EnvironmentSlots(_Rows):
    """One row per environment slot for training, one per episode for validation."""

    def __getitem__(self, index: int) -> Row:
        return {"raw_prompt": [], "index": index, "slot": index, "agent_name": "turns"}


class TaskRows(_Rows):
    """One row per task of a step; the agent loop fetches the task by step and position."""

    def __getitem__(self, index: int) -> Row:
        return {"raw_prompt": [], "index": index, "agent_name": "tool"}

    @classmethod
    async def process_multi_modal_info(
        cls, messages: list[dict[str, object]], **_: object
    ) -> tuple[list[Image] | None, None, None]:
        """Return the images of a prompt, and None for videos and sounds, which are not supported."""
        images = await asyncio.to_thread(images_in, messages)
        return images or None, None, None


def select(batch: KVBatchMeta, keep: Sequence[bool]) -> KVBatchMeta:
    """Return the rows of a batch for which `keep` is true, without column names: readers get all columns.

    Rows keep their dictionaries of tags, which both batches share.
    """
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[*compress(batch.keys, keep)],
        tags=SharedTags(compress(batch.tags, keep)),
        extra_info=dict(batch.extra_info),
    )


def tag_columns(batch: KVBatchMeta, *names: str) -> list[Tensor]:
    """Return two or more numbers in every row's tags, each as a column of float64 of shape (rows,).

    At once, because the tags of many rows are too large for a processor's caches.
    """
    numbers = np.dtype((np.float64, (len(names),)))
    return [*torch.from_numpy(np.fromiter(map(itemgetter(*names), batch.tags), numbers, len(batch.tags))).unbind(1)]


def response_lengths(batch: KVBatchMeta) -> Tensor:
    """Return the number of each row's response tokens from its tags, shape (rows,)."""
    return _column(batch, LENGTHS[1], np.int64)


def prompt_lengths(batch: KVBatchMeta) -> Tensor:
    """Return the number of each row's prompt tokens from its tags, shape (rows,): the prompts stay in the queue."""
    return _column(batch, LENGTHS[0], np.int64)


def _column(batch: KVBatchMeta, name: str, kind: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.fromiter(map(itemgetter(name), batch.tags), kind, len(batch.tags)))


def rows_as_columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Collate rows as verl does: an array of objects for each name."""
    return {name: _object_array([row[name] for row in rows]) for name in rows[0]}


def _object_array(values: list[object]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
