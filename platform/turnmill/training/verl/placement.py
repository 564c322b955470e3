"""Placement of a run: verl's resource pools and engines, restricted to the accelerators in the job."""

from dataclasses import dataclass

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.single_controller.ray import RayResourcePool, ResourcePoolManager
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from turnmill.jobs.resources import ray_resource
from turnmill.training.verl.engine_server import EngineServer


@dataclass
class PlacedPools(ResourcePoolManager):
    """verl's pools, with each bundle on a machine with this accelerator."""

    accelerator: str | None = None

    def create_resource_pool(self) -> None:
        """Create the pools; their bundles are reserved when the first worker needs one."""
        super().create_resource_pool()
        for pool in self.resource_pool_dict.values():
            _restrict_to_accelerator(pool, self.accelerator)


def register_replica(accelerator: str | None) -> None:
    """Make verl start engines that end with their core, standalone ones on machines with this accelerator.

    It holds in this process from now on.
    """

    class PlacedReplica(vLLMReplica):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(EngineServer)

        @property
        def resource_pool(self) -> RayResourcePool | None:
            return self._resource_pool

        @resource_pool.setter
        def resource_pool(self, pool: RayResourcePool | None) -> None:
            # verl has no other hook between creating a pool and reserving its bundles.
            if pool is not None:
                _restrict_to_accelerator(pool, accelerator)
            self._resource_pool = pool

    RolloutReplicaRegistry.register("vllm", lambda: PlacedReplica)


def this_node() -> NodeAffinitySchedulingStrategy:
    """Return the scheduling strategy that places an actor on the node of this process."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _restrict_to_accelerator(pool: RayResourcePool, accelerator: str | None) -> None:
    if accelerator is not None:
        pool.accelerator_type = ray_resource(accelerator)
