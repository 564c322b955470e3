"""An engine with another distribution than the trainer's, as a stand-in for faulty kernels and number formats."""

from typing import Any

import torch

from turnmill.training.verl.cpu.vllm_worker import CpuWorkerExtension

SHARE = 0.1
"""Share of tokens that are drawn from the whole vocabulary instead of by the model."""


class PerturbedWorker(CpuWorkerExtension):
    """Mixes every distribution with the uniform one; a job names it as vLLM's `worker_extension_cls`.

    The log-probs that the engine reports are those of the mixture. The most probable token stays the same.
    """

    is_mixed = False

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], *arguments: Any, **named: Any) -> None:
        super()._update_weights(weights, *arguments, **named)
        if not self.is_mixed:
            self.is_mixed = True
            model = self.model_runner.model
            compute = model.compute_logits
            model.compute_logits = lambda *args, **kwargs: mixed(compute(*args, **kwargs))


def mixed(logits: torch.Tensor | None) -> torch.Tensor | None:
    """Return the logits, shape (tokens, vocabulary), of the mixture; None on ranks that compute none."""
    if logits is None:
        return None
    chances = logits.float().softmax(-1)
    return ((1 - SHARE) * chances + SHARE / logits.shape[-1]).log().to(logits.dtype)
