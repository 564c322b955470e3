"""verl's FSDP engines with checkpoints that load on any number of ranks, registered for NVIDIA's GPUs.

`cpu.engines` registers them for the CPU.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.rollout.utils import get_vision_placeholder_token_ids

from turnmill.observability.run_folder import RunFolder
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.verl.distributed_checkpoints import DistributedCheckpoints
from turnmill.training.verl.patches import no_pictures, vision_attention

BACKENDS = ["fsdp", "fsdp2"]


BEAT_SECONDS = 5.0
"""Time between heartbeats of a rank: there may be hundreds of them, and the run folder on a network file system."""

NEVER_GENERATED = -1e4
"""Logit of a token that inference engines never generate: finite at any temperature, with a probability of 0."""


class _RunEngineMixin:
    """Builds the engine with distributed checkpoints, and beats after every micro-batch."""

    checkpoint_manager: DistributedCheckpoints

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._run_folder = RunFolder.of_process()

    def forward_step(self, *args: object, **kwargs: object) -> object:
        """Compute a micro-batch, as part of an update or of log-probs, values or a reference."""
        result: object = super().forward_step(*args, **kwargs)  # type: ignore[misc]
        if self._run_folder is not None:
            self._run_folder.beat(every=BEAT_SECONDS)
        return result

    def initialize(self) -> None:
        super().initialize()  # type: ignore[misc]
        self.checkpoint_manager = DistributedCheckpoints.replacing(self.checkpoint_manager)


@EngineRegistry.register(model_type="language_model", backend=BACKENDS, device="cuda", vendor="nvidia")
class PolicyEngine(_RunEngineMixin, FSDPEngineWithLMHead):
    """Engine of the policy and the reference model."""

    def _build_module(self) -> torch.nn.Module:
        if self.model_config.hf_config.model_type in no_pictures.MODEL_TYPES:
            no_pictures.apply()
            vision_attention.apply()
        module: torch.nn.Module = super()._build_module()
        return module

    def prepare_model_outputs(self, output: Any, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return log-probs, and entropies, among the tokens that inference engines generate.

        verl's engines never generate the placeholders of images and videos. Log-probs among all tokens would be lower.
        """
        placeholders = get_vision_placeholder_token_ids(self.model_config.processor)
        # Fused kernels compute no logits.
        if placeholders and getattr(output, "logits", None) is not None:
            output.logits[..., placeholders] = NEVER_GENERATED
        outputs: dict[str, Tensor] = super().prepare_model_outputs(output, *args, **kwargs)
        return outputs

    def get_per_tensor_param(self, *args: object, **kwargs: object) -> tuple[Iterable[tuple[str, Tensor]], Any]:
        """Return names and values of the weights for inference engines, and the configuration of LoRA adapters, if any.

        Values have the type in which the model computes, such as bfloat16: verl would send the weights that the
        optimizer updates, in float32, which is twice as much and is rounded by the engines in the same way.
        """
        weights, adapters = super().get_per_tensor_param(*args, **kwargs)
        # Quantised weights have types of their own.
        return weights if self._qat_enabled else _rounded(weights, self._autocast_dtype), adapters


@EngineRegistry.register(model_type="value_model", backend=BACKENDS, device="cuda", vendor="nvidia")
class ValueEngine(_RunEngineMixin, FSDPEngineWithValueHead):
    """Engine of the critic."""

    def prepare_model_outputs(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return the values, in float32 also where the model computes in bfloat16.

        The queue holds one type per column, and drops what is written in another: advantages are computed from float32.
        """
        outputs: dict[str, Tensor] = super().prepare_model_outputs(*args, **kwargs)
        return {name: at_least_float32(output) for name, output in outputs.items()}

    def forward_backward_batch(self, data: TensorDict, *args: object, **kwargs: object) -> object:
        """Compute a mini-batch; losses over turns get the number of its value slots on all ranks.

        verl counts tokens and rows alone, and a response of full length has no slot after its last token.
        """
        if "slot_values" in data.keys():  # noqa: SIM118 (a TensorDict)
            # A copy: the sum over ranks must not end up among the offsets.
            num_slots = data["slot_values"].offsets()[-1].to(get_device_id(), copy=True)
            torch.distributed.all_reduce(num_slots, group=self.get_data_parallel_group())
            tu.assign_non_tensor(data, batch_num_slots=num_slots.item())
        result: object = super().forward_backward_batch(data, *args, **kwargs)
        return result


def _rounded(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        yield name, weight.to(dtype) if weight.is_floating_point() else weight
