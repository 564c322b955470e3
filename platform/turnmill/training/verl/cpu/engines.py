"""verl's FSDP engines, registered for the device `cpu`."""

from typing import Any
from unittest import mock

import verl.workers.engine.fsdp.transformer_impl as fsdp
from verl.workers.engine.base import EngineRegistry


class _WithoutPinnedMemory:
    """FSDP2's reference model asks for pinned memory, which only exists beside an accelerator."""

    def _build_fsdp_module(self, module: Any) -> Any:
        with mock.patch.object(fsdp, "CPUOffloadPolicy", return_value=None):
            return super()._build_fsdp_module(module)  # type: ignore[misc]


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuPolicyEngine(_WithoutPinnedMemory, fsdp.FSDPEngineWithLMHead):
    """The policy and the reference model."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuValueEngine(_WithoutPinnedMemory, fsdp.FSDPEngineWithValueHead):
    """The critic."""
