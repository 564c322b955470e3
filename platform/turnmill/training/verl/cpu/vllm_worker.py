"""verl's extension of vLLM's workers, with linear layers that can be loaded again."""

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from turnmill.training.verl.patches import linear_weights


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """Extension named by `actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls`."""

    def __new__(cls, **kwargs: object) -> "CpuWorkerExtension":
        linear_weights.apply()
        worker: CpuWorkerExtension = super().__new__(cls, **kwargs)
        return worker
