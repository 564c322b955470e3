"""verl's replay buffer for asynchronous rollout."""

from collections.abc import Callable

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from turnmill.training.verl.types import Metrics


class StepReplayBuffer(ReplayBuffer):
    """Returns the rows that were requested for a step, once all of them have arrived."""

    step = 0
    on_poll: Callable[[], None] | None = None
    """Called at every poll while waiting for rows."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, Metrics]:
        """Return the rows of a step; rows of later steps stay in the queue."""
        self.step = global_steps
        sampled: tuple[KVBatchMeta, Metrics] = super().sample(global_steps, partition_id, batch_size)
        return sampled

    def _sampleable_terminal_keys(self, partition_id: str, *args: object) -> set[str]:
        if self.on_poll:
            self.on_poll()
        steps = self.prompt_global_steps[partition_id]
        ended = super()._sampleable_terminal_keys(partition_id, *args)
        return {key for key in ended if steps[key] == self.step}
