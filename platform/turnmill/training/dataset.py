"""What verl takes for a data set of prompts, the slots of environments or the tasks of a step; rows of its batches."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transfer_queue import KVBatchMeta

from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.multi_turn.dataset_fields import images_in


class _Rows(Dataset):
    """Rows by their number alone, made as verl makes a data set."""

    def __init__(
        self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1, **_: Any
    ) -> None:
        self.num_rows = max(1, max_samples)

    def __len__(self) -> int:
        return self.num_rows


class EnvironmentSlots(_Rows):
    """One row per environment slot for training, one per episode for validation."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": [], "index": index, "slot": index, "agent_name": "turns"}


def slots_of(job: AgentTrainingJob) -> EnvironmentSlots:
    """The rows that one step goes through."""
    return EnvironmentSlots(None, None, None, max_samples=job.spec.environment.count)


class TaskRows(_Rows):
    """One row per task of a step; which task it is follows from the step, and the agent loop fetches it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": [], "index": index, "agent_name": "tool"}

    @classmethod
    async def process_multi_modal_info(cls, messages: list[dict[str, Any]], **_: Any) -> tuple[Any, None, None]:
        """What verl's agent loops find in a prompt beside its text: images, videos, sounds."""
        return await asyncio.to_thread(images_in, messages) or None, None, None


def select(batch: KVBatchMeta, keep: Sequence[bool]) -> KVBatchMeta:
    """Some rows of a batch, and no names of columns: who reads it gets all that there are."""
    chosen = [i for i, kept in enumerate(keep) if kept]
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[i] for i in chosen],
        tags=[batch.tags[i] for i in chosen],
        extra_info=dict(batch.extra_info),
    )


def rows_as_columns(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Rows as verl collates them."""
    return {name: _object_array([row[name] for row in rows]) for name in rows[0]}


def _object_array(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
