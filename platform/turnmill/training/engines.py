"""Inference engines on machines of their own: those that are left get new weights and requests."""

import logging
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from turnmill.rollout.llm_client import engines_gone

# A dead actor answers at once; one that is only busy counts as alive.
ANSWER_SECONDS = 5.0

log = logging.getLogger(__name__)


class Engines:
    """The engines of a run, as verl's managers of requests and of weights know them."""

    def __init__(self, requests: Any, weights: Any) -> None:
        self._requests = requests
        self._weights = weights
        self._bring_the_balancer_here()

    def __len__(self) -> int:
        return len(self._weights.replicas)

    def drop_dead(self) -> None:
        """Forget engines of which a process has died; raises RunFailedError where none is left."""
        dead = [replica for replica in self._weights.replicas if _has_died([*replica.servers, *replica.workers])]
        if not dead:
            return
        addresses = [replica.server_address for replica in dead]
        log.warning("Engines died", extra={"engines": addresses, "left": len(self) - len(dead)})
        self._weights.remove_replicas(dead)
        if not len(self):
            raise engines_gone()
        ray.get(self._requests.global_load_balancer.remove_servers.remote(addresses))

    def _bring_the_balancer_here(self) -> None:
        """verl puts it on any machine: on one that only rolls out it would take all engines along when it goes."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        balancer = ray.remote(num_cpus=0, scheduling_strategy=here)(GlobalRequestLoadBalancer)
        servers = dict(zip(self._requests.server_addresses, self._requests.server_handles, strict=True))
        ray.kill(self._requests.global_load_balancer)
        self._requests.global_load_balancer = balancer.remote(servers=servers)


def _has_died(actors: list[Any]) -> bool:
    answers, _ = ray.wait(
        [actor.__ray_ready__.remote() for actor in actors], num_returns=len(actors), timeout=ANSWER_SECONDS
    )
    try:
        ray.get(answers)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.ActorUnavailableError:
        return False
    return False
