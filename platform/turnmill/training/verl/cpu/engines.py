"""verl's FSDP engines, registered for the device `cpu`."""

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from turnmill.training.verl.patches import pinned_memory


class _UnpinnedMemoryMixin:
    """Builds modules with weights in ordinary memory."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        with pinned_memory.applied():
            built: torch.nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]
            return built


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuPolicyEngine(_UnpinnedMemoryMixin, FSDPEngineWithLMHead):
    """Engine of the policy and the reference model."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuValueEngine(_UnpinnedMemoryMixin, FSDPEngineWithValueHead):
    """Engine of the critic."""
