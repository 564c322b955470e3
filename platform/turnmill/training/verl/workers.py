"""verl's training workers, and how rows are dealt to them; importing this module registers the engines."""

import os
from collections.abc import Callable

import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.base.worker_group import WorkerGroup
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.response_columns import Asked
from turnmill.training.row_advantages import fill_in_advantages, to_workers
from turnmill.training.verl import fsdp_engines  # noqa: F401  (registered on import)
from turnmill.training.verl.patches import position_rows

if os.environ.get("VERL_PLATFORM") == "cpu":
    from turnmill.training.verl.cpu import engines  # noqa: F401


position_rows.apply()


def dealt(mesh: str) -> dict[str, Callable[..., object]]:
    """Return the dispatch mode of methods that get rows of the queue, with less of them than verl's own mode sends."""
    mode = make_nd_compute_dataproto_dispatch_fn(mesh_name=mesh)

    def deal(workers: WorkerGroup, batch: KVBatchMeta) -> object:
        return mode["dispatch_fn"](workers, to_workers(batch))

    return {"dispatch_fn": deal, "collect_fn": mode["collect_fn"]}


class SeededWorker(TrainingWorker):
    """Worker whose new weights, those of adapters and of the critic's head, are drawn with the seed of the job."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        super().__init__(config)
        # The weights are made after this, in verl's `reset`.
        torch.manual_seed(self.engine_config.seed)


class PolicyWorker(ActorRolloutRefWorker):
    """Worker of the policy, its rollout and the reference model."""

    actor_worker_cls = SeededWorker

    @register(dispatch_mode=dealt("actor"))  # type: ignore[untyped-decorator]
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Train on rows, whose tokens get the advantages that their tags have."""
        fill_in_advantages(data)
        trained: TensorDict = super().update_actor(data)
        return trained

    @register(dispatch_mode=dealt("actor"))  # type: ignore[untyped-decorator]
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Return log-probs and entropies of the rows' tokens."""
        asked = Asked.of(data)
        computed: TensorDict | None = super().compute_log_prob(data)
        return computed if asked is None or computed is None else asked.log_probs(computed, self.config)

    @register(dispatch_mode=dealt("ref"))  # type: ignore[untyped-decorator]
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Return the reference model's log-probs of the rows' tokens."""
        asked = Asked.of(data)
        computed: TensorDict | None = super().compute_ref_log_prob(data)
        return computed if asked is None or computed is None else asked.log_probs(computed, self.config)


class CriticWorker(SeededWorker):
    """Worker of the critic."""

    @register(dispatch_mode=dealt("train"), blocking=False)  # type: ignore[untyped-decorator]
    def infer_batch(self, data: TensorDict) -> TensorDict | None:
        """Return the values of the rows' tokens."""
        asked = Asked.of(data)
        computed: TensorDict | None = super().infer_batch(data)
        return computed if asked is None or computed is None else asked.responses(computed, "values")

    @register(dispatch_mode=dealt("train"), blocking=False)  # type: ignore[untyped-decorator]
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """Train on rows."""
        trained: TensorDict = super().train_mini_batch(data)
        return trained
