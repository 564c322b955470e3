"""verl's training workers; importing this module in their processes registers the engines."""

import os

from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.row_advantages import fill_in_advantages, with_row_advantages
from turnmill.training.verl import fsdp_engines  # noqa: F401  (registered on import)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from turnmill.training.verl.cpu import engines  # noqa: F401


class PolicyWorker(ActorRolloutRefWorker):
    """Worker of the policy, its rollout and the reference model."""

    @with_row_advantages
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))  # type: ignore[untyped-decorator]
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Train on rows, whose tokens get the advantages that their tags have."""
        fill_in_advantages(data)
        trained: TensorDict = super().update_actor(data)
        return trained


class CriticWorker(TrainingWorker):
    """Worker of the critic."""
