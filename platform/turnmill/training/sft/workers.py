"""verl's training workers of a fine-tuning, in a pool of the job's devices."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import ray
from omegaconf import DictConfig
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig

from turnmill.jobs import AgentTrainingJob
from turnmill.training.verl.placement import PlacedPools
from turnmill.training.verl.workers import SeededWorker

if TYPE_CHECKING:
    from verl.workers.config import HFModelConfig

_POOL = "fine_tuning"


def start_workers(
    job: AgentTrainingJob,
    config: DictConfig,
    model_config: "HFModelConfig",
    loss: Callable[..., object],
    device: str,
) -> RayWorkerGroup:
    """Start a worker on each device of `resources.train`, and load the model."""
    train = job.spec.resources.train
    pools = PlacedPools({_POOL: [train.gpus_per_node] * train.nodes}, {}, accelerator=train.accelerator)
    pools.create_resource_pool()
    settings = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model_config,
        engine_config=omega_conf_to_dataclass(config.engine),
        optimizer_config=omega_conf_to_dataclass(config.optim),
        checkpoint_config=omega_conf_to_dataclass(config.checkpoint),
        profiler_config=omega_conf_to_dataclass(config.profiler),
    )
    workers = RayWorkerGroup(
        resource_pool=pools.resource_pool_dict[_POOL],
        ray_cls_with_init=RayClassWithInitArgs(ray.remote(SeededWorker), config=settings),
        device_name=device,
    )
    workers.set_loss_fn(loss_fn=loss)
    workers.reset()
    return workers


def stop_workers(workers: RayWorkerGroup) -> None:
    """End the workers and free their devices: verl reserves them for as long as Ray's cluster lives."""
    for group in workers.resource_pool.pgs or ():
        # The workers in it are killed.
        ray.util.remove_placement_group(group)
