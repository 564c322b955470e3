"""verl's FSDP engines, registered for the device `cpu`."""

import torch
from verl.workers.engine.base import EngineRegistry

from turnmill.training.verl.fsdp_engines import BACKENDS, PolicyEngine, ValueEngine
from turnmill.training.verl.patches import pinned_memory


class _UnpinnedMemoryMixin:
    """Builds modules with weights in ordinary memory."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        with pinned_memory.applied():
            built: torch.nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]
            return built


@EngineRegistry.register(model_type="language_model", backend=BACKENDS, device="cpu")
class CpuPolicyEngine(_UnpinnedMemoryMixin, PolicyEngine):
    """Engine of the policy and the reference model."""


@EngineRegistry.register(model_type="value_model", backend=BACKENDS, device="cpu")
class CpuValueEngine(_UnpinnedMemoryMixin, ValueEngine):
    """Engine of the critic."""
