"""Rollout on the trainer's own devices."""

from contextlib import AbstractContextManager

from omegaconf import DictConfig
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from turnmill.rollout.worker import LoopManager
from turnmill.training.verl.placement import register_replica
from turnmill.training.verl.shared_engines import ended_with
from turnmill.training.verl.types import WeightManager


class SharedEnginesMixin(PPOTrainer):
    """Ends the attempt when an engine dies; mixed into the modes in which engines share devices with the trainer."""

    actor_rollout_wg: RayWorkerGroup
    checkpoint_manager: WeightManager

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        register_replica(None)

    def on_init_end(self) -> None:
        """Load the checkpoint, and send the first weights to the engines. Raises RunFailedError if an engine dies."""
        with self._ended_with_engines():
            super().on_init_end()

    def fit(self, agent_loop_manager: LoopManager) -> None:
        """Train. Raises RunFailedError if an engine dies."""
        with self._ended_with_engines():
            super().fit(agent_loop_manager)

    def _ended_with_engines(self) -> AbstractContextManager[None]:
        servers = [server for replica in self.checkpoint_manager.replicas for server in replica.servers]
        return ended_with(servers, self.actor_rollout_wg.workers)
