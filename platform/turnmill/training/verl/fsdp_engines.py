"""verl's FSDP engines with checkpoints that load on any number of ranks, registered for NVIDIA's GPUs.

`cpu.engines` registers them for the CPU.
"""

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from turnmill.training.verl.distributed_checkpoints import DistributedCheckpoints

BACKENDS = ["fsdp", "fsdp2"]


class _DistributedCheckpointsMixin:
    """Builds the engine with distributed checkpoints."""

    checkpoint_manager: DistributedCheckpoints

    def initialize(self) -> None:
        super().initialize()  # type: ignore[misc]
        self.checkpoint_manager = DistributedCheckpoints.replacing(self.checkpoint_manager)


@EngineRegistry.register(model_type="language_model", backend=BACKENDS, device="cuda", vendor="nvidia")
class PolicyEngine(_DistributedCheckpointsMixin, FSDPEngineWithLMHead):
    """Engine of the policy and the reference model."""


@EngineRegistry.register(model_type="value_model", backend=BACKENDS, device="cuda", vendor="nvidia")
class ValueEngine(_DistributedCheckpointsMixin, FSDPEngineWithValueHead):
    """Engine of the critic."""
