"""verl's training workers; importing this module in their processes registers the engines."""

import os

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.row_advantages import fill_in_advantages, with_row_advantages
from turnmill.training.verl import fsdp_engines  # noqa: F401  (registered on import)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from turnmill.training.verl.cpu import engines  # noqa: F401


class SeededWorker(TrainingWorker):
    """Worker whose new weights, those of adapters and of the critic's head, are drawn with the seed of the job."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        super().__init__(config)
        # The weights are made after this, in verl's `reset`.
        torch.manual_seed(self.engine_config.seed)


class PolicyWorker(ActorRolloutRefWorker):
    """Worker of the policy, its rollout and the reference model."""

    actor_worker_cls = SeededWorker

    @with_row_advantages
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))  # type: ignore[untyped-decorator]
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Train on rows, whose tokens get the advantages that their tags have."""
        fill_in_advantages(data)
        trained: TensorDict = super().update_actor(data)
        return trained


class CriticWorker(SeededWorker):
    """Worker of the critic."""
