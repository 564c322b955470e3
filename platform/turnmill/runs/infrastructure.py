"""What a run on this machine needs beside its trainer, and what of it outlives an attempt that fails."""

import logging
import signal
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial

import psutil

from turnmill.core.activity import has_ended, is_stopped
from turnmill.core.clock import Clock
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.progress import read_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.ray_cluster import RayCluster, ray_cluster
from turnmill.runs.services import Services, services
from turnmill.runs.still_processes import RAY_AGENT, RayNode
from turnmill.runs.watcher import watching

NODE = ("gcs_server", "raylet")
"""Ray's processes without which no attempt can go on."""

FREE_SECONDS, LOOK_SECONDS = 10.0, 0.1
"""Time for Ray to notice that an attempt has ended, and between two looks."""

log = logging.getLogger(__name__)


class Infrastructure:
    """Ray cluster, store and tool server of a run. Started once, and again if they are no longer fit for an attempt."""

    def __init__(self, job: AgentTrainingJob, folder: RunFolder, device: str, owner: processes.Owner) -> None:
        self._job = job
        self._folder = folder
        self._device = device
        self._owner = owner
        self._stack = ExitStack()
        self._services: Services | None = None
        self._cluster: RayCluster | None = None
        self._started: Mapping[int, str] = {}
        """Names of Ray's own processes, and of the one that has become the fork server or waits for it."""

        self._clock = Clock()
        """Since Ray was started."""

        self._steps_done: int | None = None
        """Steps that were complete at the end of the last attempt, if there was one."""

    def start(self) -> Services:
        """Return tool server and store; start them and Ray unless they run. Raises RunFailedError."""
        if self._services is None:
            with ExitStack() as stack:
                self._clock = Clock()
                stack.enter_context(watching(partial(_watch, self._clock), "clock"))
                running = stack.enter_context(services(self._job, self._folder, self._owner))
                self._cluster = stack.enter_context(ray_cluster(self._job, self._device, self._owner, self._folder))
                self._started = _children(set(processes.find_marked(self._owner.mark)) - running.process_ids())
                self._stack = stack.pop_all()
            self._services = running
        return self._services

    @property
    def node(self) -> RayNode:
        """Ray's node, once it has been started."""
        return RayNode({pid: name for pid, name in self._started.items() if name in NODE}, self._folder)

    def clear(self) -> None:
        """End the processes of an attempt that has failed, and all others unless the next attempt can use them."""
        if self._has_advanced() and self._is_cleared():
            return
        self.close()
        processes.terminate_marked(self._owner.mark)

    def close(self) -> None:
        """Stop everything."""
        for pid in self._started:
            # Ray would wait for it.
            if is_stopped(pid):
                processes.send_signal(pid, signal.SIGKILL)
        self._started = {}
        self._services = self._cluster = None
        self._stack.close()

    def _has_advanced(self) -> bool:
        """Return whether the attempt has trained, and has come further than the one before: else Ray may be why."""
        progress, before = read_progress(self._folder), self._steps_done
        self._steps_done = None if progress is None else progress.done
        return progress is not None and progress.phase == "training" and (before is None or progress.done > before)

    def _is_cleared(self) -> bool:
        """End the processes of the attempt, and return whether what stays can be used.

        Nothing starts Ray's own processes, the fork server and the store's supervisor again.
        """
        if self._services is None:
            return False
        if (behind := self._clock.seconds_behind()) > FREE_SECONDS:
            log.warning("Clock was set back, Ray does not go on and is started again", extra={"seconds": round(behind)})
            return False
        assert self._cluster is not None
        stay, server, store = set(self._started), self._cluster.fork_server, self._services.store
        if server is not None:
            if (pid := server.server_pid()) is None:
                return False
            stay.add(pid)
        if store is not None:
            stay.add(store.pid)
        running = self._services.process_ids
        processes.terminate_marked(self._owner.mark, but=lambda marked: stay | running() | _agents(marked))
        # Looked at last: a signal may reach a process late.
        if not (all(map(_runs, stay)) and _is_free()):
            return False
        self._cluster.keep_logs(self._folder)
        return True


def _watch(clock: Clock, over: threading.Event) -> None:
    while not over.wait(LOOK_SECONDS):
        clock.seconds_behind()


def _children(pids: Collection[int]) -> dict[int, str]:
    """Return those processes that this one has started, with their names."""
    names = {}
    for child in psutil.Process().children():
        if child.pid in pids:
            with suppress(psutil.NoSuchProcess):
                names[child.pid] = child.name()
    return names


def _agents(marked: Collection[int]) -> set[int]:
    """Return the processes that Ray's node starts for itself beside workers."""
    return {pid for pid in marked if RAY_AGENT.match(processes.title(pid))}


def _runs(pid: int) -> bool:
    """Return whether a process is there, and no signal has stopped it."""
    return not (has_ended(pid) or is_stopped(pid))


def _is_free() -> bool:
    """Free what the attempt has reserved, and return whether Ray says in time that nothing uses it."""
    import ray

    deadline = time.monotonic() + FREE_SECONDS
    try:
        _remove_placement_groups()
        while not (free := _is_unused()) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    except ray.exceptions.RayError as error:
        log.warning("Ray does not answer and is started again", extra={"error": str(error)})
        return False
    if not free:
        log.warning("Ray still has processes of the last attempt and is started again")
    return free


def _remove_placement_groups() -> None:
    """Free what an attempt has reserved: Ray does that at the end of a whole driver alone."""
    import ray
    from ray.util.placement_group import PlacementGroup

    for name, group in ray.util.placement_group_table().items():
        if group["state"] != "REMOVED":
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))


def _is_unused() -> bool:
    """Return whether Ray has no named actor, and all processors and devices are free."""
    import ray

    if ray.util.list_named_actors(all_namespaces=True):
        return False
    free, there = ray.available_resources(), ray.cluster_resources()
    return all(bool(free.get(name, 0.0) >= there.get(name, 0.0)) for name in ("CPU", "GPU"))
