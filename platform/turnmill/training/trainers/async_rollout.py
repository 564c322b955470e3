"""Asynchronous rollout: each step has rows of its own, requested up to `maxStaleness` steps in advance."""

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from turnmill.rollout.llm_client import EngineClient, ResumingClient
from turnmill.training.accelerators import demands
from turnmill.training.checkpoints import RunState
from turnmill.training.trainers.shared_engines import SharedEnginesMixin
from turnmill.training.verl import placement
from turnmill.training.verl.engines import Engines
from turnmill.training.verl.types import Metrics, ServerManager, WeightManager


class AsyncRolloutMixin(PPOTrainer):
    """Requests the rows of the next steps while a step is trained; mixed into the asynchronous modes.

    The policy that generates the rows of a step is at most `maxStaleness` steps older than the one that is trained on
    them. Rows that a stopped attempt had requested after its checkpoint are requested again by the next one, so no step
    mixes rows of two attempts.
    """

    config: DictConfig
    global_steps: int
    total_training_steps: int
    trainer_mode: str
    llm_server_manager: ServerManager
    _pending_checkpoint: RunState | None

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self._last_requested_step: int | None = None
        self._step_to_hand_over: int | None = None

    def on_step_end(self) -> None:
        """Hand the new weights to the engines; if a checkpoint has them that is not complete yet, then later.

        An attempt that begins with the checkpoint before knows no policy with these weights, and would delete all
        trajectories with a turn of it. A validation, which comes before the checkpoint is complete, needs them at once.
        """
        test_freq = self.config.trainer.test_freq
        validates = test_freq > 0 and self.global_steps % test_freq == 0
        if self._pending_checkpoint is None or validates or self.global_steps >= self.total_training_steps:
            self._hand_over_weights()
        else:
            self._step_to_hand_over = self.global_steps

    def on_step_begin(self) -> None:
        """Hand the weights of the step before to the engines, unless they have them."""
        if self._step_to_hand_over is not None:
            now, self.global_steps = self.global_steps, self._step_to_hand_over
            try:
                self._hand_over_weights()
            finally:
                self.global_steps, self._step_to_hand_over = now, None
        super().on_step_begin()

    def _hand_over_weights(self) -> None:
        super().on_step_end()

    def prepare_step(self) -> Metrics:
        """Request the rows of this step and of the next ones."""
        if self._last_requested_step is None:
            self._last_requested_step = self.global_steps - 1
        ahead = self.job.spec.training.max_staleness
        while self._last_requested_step < min(self.global_steps + ahead, self.total_training_steps):
            self._last_requested_step += 1
            self._request_rollout(self._last_requested_step)
        return {}

    def _request_rollout(self, step: int) -> None:
        learning, self.global_steps = self.global_steps, step
        try:
            self._add_batch_to_generate()
        finally:
            self.global_steps = learning

    def _add_async_warmup_batches(self, num_warmup_batches: float) -> None:
        """Do nothing: the first step requests its rows and those of the next steps."""

    def _reissue_inflight_prompts(self, partition_id: str = "train") -> int:
        """Do nothing: the first step of an attempt requests its rows."""
        return 0

    def _save_checkpoint(self) -> None:
        # In the asynchronous modes verl would keep the rows in flight as well.
        mode, self.trainer_mode = self.trainer_mode, "sync"
        super()._save_checkpoint()
        self.trainer_mode = mode


class ColocateAsync(AsyncRolloutMixin, SharedEnginesMixin, PPOTrainerColocateAsync):
    """Overlaps rollout and learning on the same devices."""

    def sleep_engines(self) -> None:
        """Free the memory of the engines, which share devices with the trainer; requests that run are resumed later."""
        self.checkpoint_manager.abort_replicas()
        self.checkpoint_manager.sleep_replicas()

    def wake_engines(self) -> None:
        """Wake the engines with the current weights."""
        self.checkpoint_manager.update_weights(self.global_steps)
        self.checkpoint_manager.resume_generation_replicas()

    def get_llm_client(self) -> ResumingClient:
        """Return the client by which agent loops generate."""
        return self.llm_server_manager.get_client(client_cls=ResumingClient)


class SeparateAsync(AsyncRolloutMixin, PPOTrainerSeparateAsync):
    """Overlaps rollout and learning on separate devices; weights are sent over the network after every step."""

    standalone_server_manager: ServerManager
    standalone_checkpoint_manager: WeightManager

    def __init__(self, config: DictConfig) -> None:
        # verl wants one mini-batch per weight sync, counted in prompts; ours are counted in rows.
        actor = config.actor_rollout_ref.actor
        wanted, actor.ppo_mini_batch_size = actor.ppo_mini_batch_size, config.data.train_batch_size
        super().__init__(config)
        actor.ppo_mini_batch_size = wanted
        placement.register_replica(self.job.spec.resources.rollout.accelerator)

    def _setup(self) -> None:
        super()._setup()
        self._engines = Engines(
            self.standalone_server_manager,
            self.standalone_checkpoint_manager,
            demand=demands(self.job)[1],
            wait_seconds=self.job.spec.training.stall_timeout_seconds / 2,
        )
        self.replay_buffer.on_poll = self._replace_dead_engines

    def _replace_dead_engines(self) -> None:
        self._engines.replace_dead_while_waiting(
            lambda: self.standalone_checkpoint_manager.update_weights(self._version)
        )

    def sleep_engines(self) -> None:
        """Do nothing: the engines have devices of their own."""

    def wake_engines(self) -> None:
        """Do nothing: the engines did not sleep."""

    def on_init_end(self) -> None:
        """Send the first weights, or those of the checkpoint, to all engines."""
        self._version = self.global_steps
        self._engines.update_weights(super().on_init_end)

    def get_llm_client(self) -> EngineClient:
        """Return the client by which agent loops generate."""
        return self.standalone_server_manager.get_client(client_cls=EngineClient)

    def _hand_over_weights(self) -> None:
        self._version = self.global_steps
        self._engines.update_weights(super()._hand_over_weights)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: Metrics, *args: object, **kwargs: object) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics["turnmill/engines"] = float(len(self._engines))
