"""verl's extension of vLLM's workers, with linear layers that can be loaded again."""

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


def _keep_linear_weights() -> None:
    """vLLM 0.28 drops a linear layer's weight once it is packed for the CPU; the next weight sync needs it."""
    import vllm.model_executor.layers.utils as layers

    original = layers.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> Any:
        return original(layer, remove_weight=False)

    if not getattr(original, "is_patched", False):
        dispatch.is_patched = True  # type: ignore[attr-defined]
        layers.dispatch_cpu_unquantized_gemm = dispatch


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """Set by `actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls`."""

    def __new__(cls, **kwargs: Any) -> "CpuWorkerExtension":
        _keep_linear_weights()
        return super().__new__(cls, **kwargs)
