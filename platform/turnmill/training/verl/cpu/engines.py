"""verl's FSDP engines, registered for the device `cpu`."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
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

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and the values of all weights with the adapters merged into them.

        verl rounds them to bfloat16, whatever the engines' type; here they keep the type that they are trained in.
        """
        with merged_lora_context(self.module, backup_adapters=True):
            for name, weight in normalize_peft_param_name(self.module.state_dict()).items():
                whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
                # The adapters are taken out of the weights' own memory as soon as the last one is sent.
                yield name, whole.detach().clone()


@EngineRegistry.register(model_type="value_model", backend=BACKENDS, device="cpu")
class CpuValueEngine(_UnpinnedMemoryMixin, ValueEngine):
    """Engine of the critic."""
