"""Synchronous rollout: it alternates with learning on the same devices."""

from verl.trainer.ppo.v1 import PPOTrainerSync

from turnmill.rollout.llm_client import SingleEngineClient
from turnmill.rollout.verl_classes import LLMServerClient
from turnmill.training.trainers.shared_engines import SharedEnginesMixin
from turnmill.training.verl.types import ServerManager


class Sync(SharedEnginesMixin, PPOTrainerSync):
    """Alternates rollout and learning on the same devices."""

    llm_server_manager: ServerManager
    global_steps: int

    def sleep_engines(self) -> None:
        """Free the memory of the engines, which share devices with the trainer."""
        self.checkpoint_manager.sleep_replicas()

    def wake_engines(self) -> None:
        """Wake the engines with the current weights."""
        self.checkpoint_manager.update_weights(self.global_steps)

    def get_llm_client(self) -> LLMServerClient:
        """Return the client by which agent loops generate."""
        has_one = len(self.llm_server_manager.server_addresses) == 1
        return self.llm_server_manager.get_client(client_cls=SingleEngineClient if has_one else LLMServerClient)
