"""Rollout on the trainer's own devices."""

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

    def fit(self, agent_loop_manager: LoopManager) -> None:
        """Train. Raises RunFailedError if an engine dies."""
        servers = [server for replica in self.checkpoint_manager.replicas for server in replica.servers]
        with ended_with(servers, self.actor_rollout_wg.workers):
            super().fit(agent_loop_manager)
