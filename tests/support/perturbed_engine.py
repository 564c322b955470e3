"""An engine whose weights differ from the trainer's, as a stand-in for other kernels and number formats."""

from typing import Any

import torch

from turnmill.training.verl.cpu.vllm_worker import CpuWorkerExtension

RELATIVE_NOISE = 0.1
"""Standard deviation of the noise on a weight matrix, as a share of that of the matrix."""


class PerturbedWorker(CpuWorkerExtension):
    """Adds the same noise to the weights of every sync; a job names it as vLLM's `worker_extension_cls`."""

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], *arguments: Any, **named: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        super()._update_weights([(name, _perturbed(x, generator)) for name, x in weights], *arguments, **named)


def _perturbed(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if weight.dim() < 2:
        return weight
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * weight.float().std()
    return (weight.float() + RELATIVE_NOISE * noise).to(weight.dtype)
