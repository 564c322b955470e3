"""verl's replay buffer, which hands out the rows of a step."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from turnmill.rollout.worker import EndedPrompt
from turnmill.training.arrivals import Arrivals
from turnmill.training.shared_tags import SharedTags
from turnmill.training.verl.types import Metrics

WAIT_SECONDS = 0.2
"""Time between two calls of `on_poll`."""


class StepReplayBuffer(ReplayBuffer):
    """Returns the rows that were requested for a step, once all of them have arrived.

    It lists the keys of the queue once per step, not at every poll, because agent loop workers report what has ended.
    """

    step = 0
    arrivals: Arrivals | None = None
    """Reports of the agent loop workers; without them, keys are listed at every poll."""

    on_poll: Callable[[], None] | None = None
    """Called again and again while waiting for rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_ended: Counter[tuple[str, int]] = Counter()

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, Metrics]:
        """Return the rows of a step; rows of later steps stay in the queue."""
        self.step = global_steps
        self._wait_for_arrivals((partition_id, global_steps), batch_size)
        sampled: tuple[KVBatchMeta, Metrics] = super().sample(global_steps, partition_id, batch_size)
        return sampled

    def _wait_for_arrivals(self, wanted: tuple[str, int], batch_size: int) -> None:
        if self.arrivals is None:
            return
        # Once in any case: a worker that has died is replaced, although this step's rows have arrived.
        self._count(self.arrivals.wait(0))
        while self._num_ended[wanted] < batch_size:
            if self.on_poll:
                self.on_poll()
            self._count(self.arrivals.wait(WAIT_SECONDS))
        self._num_ended[wanted] -= batch_size

    def _count(self, ended: Sequence[EndedPrompt]) -> None:
        for prompt in ended:
            self._num_ended["val" if prompt.validation else "train", prompt.step] += 1

    def _sampleable_terminal_keys(self, partition_id: str, *args: object) -> set[str]:
        if self.on_poll:
            self.on_poll()
        steps = self.prompt_global_steps[partition_id]
        ended = super()._sampleable_terminal_keys(partition_id, *args)
        return {key for key in ended if steps[key] == self.step}

    def _materialize_batch(
        self, partition_id: str, uids: Sequence[str], tags: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        tq.kv_clear(partition_id=partition_id, keys=list(uids))
        selected = set(uids)
        # Rows that are trained in the order of their arrival would make two runs of one seed differ.
        keys = sorted((key for key in tags if key.split("_")[0] in selected), key=_order)
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=SharedTags(tags[key] for key in keys))


def _order(key: str) -> tuple[str, int, int]:
    """Order rows by prompt, sample and number; keys are {prompt}_{sample}_{number}."""
    prompt, sample, number = key.rsplit("_", 2)
    return prompt, int(sample), int(number)
