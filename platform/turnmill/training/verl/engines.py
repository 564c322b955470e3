"""Standalone inference engines: when one dies, the others continue, and it is replaced by a new one."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import ray
from ray.actor import ActorHandle
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from turnmill.core.clock import Clock
from turnmill.core.errors import RunFailedError
from turnmill.rollout.actor_deaths import DEATHS
from turnmill.training.accelerators import Demand, wait_for_room
from turnmill.training.verl.placement import this_node
from turnmill.training.verl.types import ServerManager, WeightManager
from turnmill.training.verl.weight_transfer import BACKEND, TIMEOUT_SECONDS

# A call of a dead actor fails at once; an actor that is only busy counts as alive.
READY_TIMEOUT_SECONDS = 5.0
CHECK_SECONDS = 5.0
RETRY_SECONDS = 30.0
# Ray takes some seconds to notice that a machine is gone.
NOTICE_SECONDS = 60.0

log = logging.getLogger(__name__)


class Engines:
    """Inference engines of a run: detects dead ones, starts others in their place, and transfers weights to all.

    The trainer's own thread checks them, between steps and while it waits for rollout; it does not wait for an engine
    while there are rows to train on. A new engine starts with the run's initial policy, so it gets requests only after
    the next transfer of weights.
    """

    def __init__(self, servers: ServerManager, weights: WeightManager, *, demand: Demand, wait_seconds: float) -> None:
        """`demand` is the resources of one engine; without any, rows are waited for `wait_seconds` at most."""
        self._server_manager = servers
        self._weight_manager = weights
        self._demand = demand
        self._wait_seconds = wait_seconds
        self._num_wanted = len(self)
        self._next_rank = 1 + max(replica.replica_rank for replica in weights.replicas)
        self._starts: list[_EngineStart] = []
        self._joining: list[RolloutReplica] = []
        """New engines that take part in transfers, and serve after the first one that succeeds."""

        self._last_check = self._failed_at = float("-inf")
        self._waiting_since: float | None = None
        """Since when rows are waited for without any engine."""

        self._clock = Clock()
        self._move_load_balancer_to_this_node()

    def __len__(self) -> int:
        return len(self._weight_manager.replicas)

    def update_weights(self, update: Callable[[], object]) -> None:
        """Transfer weights to all engines and let new ones serve.

        If an engine dies during the transfer, it is repeated with the others. Without any engine, training goes on with
        the rows that have arrived; the next call, or one of `replace_dead_while_waiting`, sends weights to a new one.
        """
        self._waiting_since = None
        self._clock.seconds_behind()
        self._replace_dead()
        if len(self) or self._any_ready():
            self._transfer(update)

    def replace_dead_while_waiting(self, update_weights: Callable[[], object]) -> None:
        """Start engines in place of dead ones, every few seconds; send weights only if no engine can serve otherwise.

        Raises RunFailedError once rollout has been waited for without any engine for `wait_seconds`, or sooner if none
        can start by then.
        """
        now = time.monotonic()
        self._clock.seconds_behind()
        if now - self._last_check < CHECK_SECONDS:
            return
        self._last_check = now
        self._replace_dead()
        if len(self):
            self._waiting_since = None
        elif self._any_ready():
            self._transfer(update_weights)
        elif self._waiting_since is None:
            self._waiting_since = now
        elif (behind := self._clock.seconds_behind()) > self._wait_seconds and not any(
            s.has_room for s in self._starts
        ):
            # On one machine, the next attempt starts Ray again.
            raise RunFailedError(
                f"Every inference engine has died, and the clock was set back: for {behind:.0f} s more, Ray does not "
                "notice the room that they left. Start Ray again; `--resume` continues from the last checkpoint.",
                "engines_died",
            )
        elif now - self._waiting_since > self._wait_seconds:
            raise RunFailedError(
                f"Every inference engine has died, and none was replaced within {self._wait_seconds:g} s: their "
                "processes or machines are gone. `--resume` continues from the last checkpoint.",
                "engines_died",
            )

    def _replace_dead(self) -> None:
        self._drop_dead()
        self._start_missing()

    def _transfer(self, update: Callable[[], object]) -> None:
        ready = [start for start in self._starts if start.is_ready]
        self._starts = [start for start in self._starts if start not in ready]
        self._joining += [start.replica for start in ready]
        self._weight_manager.add_replicas([start.replica for start in ready])
        try:
            update()
        except Exception as error:
            if self._weight_manager.backend != BACKEND or not self._lost_any_within(NOTICE_SECONDS):
                raise
            log.warning("An engine died during a weight sync, which is repeated", extra={"what": str(error)})
            # Others start meanwhile.
            self._start_missing()
            self._wait_until_idle(error)
            self.update_weights(update)
            return
        if self._joining:
            servers = {replica.server_address: replica.server_handle for replica in self._joining}
            log.warning("Engines serve", extra={"engines": list(servers), "all": len(self)})
            ray.get(self._server_manager.global_load_balancer.add_servers.remote(servers))
            self._joining = []

    def _lost_any_within(self, seconds: float) -> bool:
        """Drop dead engines; return True if there was one, after giving Ray time to notice its death."""
        before, deadline = len(self), time.monotonic() + seconds
        self._drop_dead()
        while len(self) == before and time.monotonic() < deadline:
            time.sleep(0.5)
            self._drop_dead()
        return len(self) < before

    def _wait_until_idle(self, error: Exception) -> None:
        """Wait until the trainer's processes have ended a failed transfer; raise its error if they do not."""
        trainers = self._weight_manager.actor_wg
        deadline = time.monotonic() + 2 * TIMEOUT_SECONDS
        while not all(ray.get(trainers.execute_checkpoint_engine(["is_idle"] * trainers.world_size))):
            if time.monotonic() > deadline:
                raise error
            time.sleep(0.5)

    def _drop_dead(self) -> None:
        dead = [replica for replica in self._weight_manager.replicas if _has_died(_actors(replica))]
        if not dead:
            return
        addresses = [replica.server_address for replica in dead]
        log.warning("Engines died", extra={"engines": addresses, "left": len(self) - len(dead)})
        self._weight_manager.remove_replicas(dead)
        self._joining = [replica for replica in self._joining if replica not in dead]
        ray.get(self._server_manager.global_load_balancer.remove_servers.remote(addresses))
        for replica in dead:
            _release(replica)

    def _start_missing(self) -> None:
        for start in list(self._starts):
            # A ready engine has no requests yet whose failure would show its death.
            if start.error is None and not (start.is_ready and _has_died(_actors(start.replica))):
                continue
            log.warning("Engine did not start, or died at once", exc_info=start.error)
            self._starts.remove(start)
            self._failed_at = time.monotonic()
            _release(start.replica)
        if time.monotonic() - self._failed_at < RETRY_SECONDS:
            return
        while len(self) + len(self._starts) < self._num_wanted:
            self._starts.append(_EngineStart(self._new_replica(), self._demand))

    def _any_ready(self) -> bool:
        return any(start.is_ready for start in self._starts)

    def _new_replica(self) -> RolloutReplica:
        manager = self._server_manager
        # Ray names actors by rank, and names of a dead engine's actors are not free at once.
        rank, self._next_rank = self._next_rank, self._next_rank + 1
        replica: RolloutReplica = manager.rollout_replica_class(
            replica_rank=rank,
            config=manager.rollout_config,
            model_config=manager.model_config,
            gpus_per_node=manager.rollout_config.n_gpus_per_node,
        )
        return replica

    def _move_load_balancer_to_this_node(self) -> None:
        """Move the load balancer to this node, as verl may place it on a rollout machine that can disappear."""
        balancer = ray.remote(num_cpus=0, scheduling_strategy=this_node())(GlobalRequestLoadBalancer)
        servers = dict(zip(self._server_manager.server_addresses, self._server_manager.server_handles, strict=True))
        ray.kill(self._server_manager.global_load_balancer)
        self._server_manager.global_load_balancer = balancer.remote(servers=servers)


class _EngineStart:
    """Start of an engine in a thread, after waiting for a machine without a time limit."""

    def __init__(self, replica: RolloutReplica, demand: Demand) -> None:
        self.replica = replica
        self._demand = demand
        self.has_room = self.is_ready = False
        self.error: BaseException | None = None
        threading.Thread(target=self._start, daemon=True, name=f"engine-{replica.replica_rank}").start()

    def _start(self) -> None:
        try:
            wait_for_room(self._demand)
            self.has_room = True
            asyncio.run(self.replica.init_standalone())
            self.is_ready = True
        except BaseException as error:
            self.error = error


def _actors(replica: RolloutReplica) -> list[ActorHandle]:
    return [*replica.servers, *replica.workers]


def _release(replica: RolloutReplica) -> None:
    """Kill the remaining processes of an engine and free its machines."""
    for actor in _actors(replica):
        ray.kill(actor)
    for group in (replica.resource_pool.pgs if replica.resource_pool else None) or ():
        ray.util.remove_placement_group(group)


def _has_died(actors: list[ActorHandle]) -> bool:
    answers, _ = ray.wait(
        [actor.__ray_ready__.remote() for actor in actors], num_returns=len(actors), timeout=READY_TIMEOUT_SECONDS
    )
    try:
        ray.get(answers)
    except DEATHS:
        return True
    except ray.exceptions.ActorUnavailableError:
        return False
    return False
