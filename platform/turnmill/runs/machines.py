"""The watch over processes that stand still in a cluster: on every machine on which a run has some."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnmill.jobs import AgentTrainingJob, job_from_json
from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.writer import writer_id
from turnmill.runs.still_processes import still_processes_killed
from turnmill.runs.watcher import watching

LOOK_SECONDS = 5.0

log = logging.getLogger(__name__)


@ray.remote(num_cpus=0, max_restarts=-1)
class MachineWatch:
    """Kills a run's processes that stand still on the machine of this actor, as long as it lives."""

    def __init__(self, job_json: str, run_dir: str, mark: str, *, can_retry: bool) -> None:
        logs.configure(RunFolder(run_dir), process=f"machine-{writer_id()}")
        self._watch = ExitStack()
        self._watch.enter_context(still_processes_killed(job_from_json(job_json), mark, can_retry=can_retry))


@contextmanager
def machines_watched(job: AgentTrainingJob, folder: RunFolder, mark: str, *, can_retry: bool) -> Iterator[None]:
    """Kill processes with a mark that stand still on the machines of this Ray job, while the context lasts.

    So too on machines that come later. A machine without another actor of the job has no watch, as that would keep it
    from being released.
    """
    start = partial(_start, job.model_dump_json(by_alias=True), str(folder.path), mark, can_retry=can_retry)
    with watching(partial(_watch, start), "machines"):
        yield


def _start(job_json: str, run_dir: str, mark: str, machine: str, *, can_retry: bool) -> ActorHandle:
    there = NodeAffinitySchedulingStrategy(machine, soft=False)
    watch = MachineWatch.options(scheduling_strategy=there)  # type: ignore[attr-defined]
    return watch.remote(job_json, run_dir, mark, can_retry=can_retry)


def _watch(start: Callable[[str], ActorHandle], over: threading.Event) -> None:
    watches: dict[str, ActorHandle] = {}
    while True:
        try:
            machines = _machines()
        except ray.exceptions.RayError as error:
            log.warning("Ray does not say where the run's processes are", extra={"error": str(error)})
        else:
            for machine in machines - watches.keys():
                watches[machine] = start(machine)
            for machine in watches.keys() - machines:
                ray.kill(watches.pop(machine))
        if over.wait(LOOK_SECONDS):
            break
    for watch in watches.values():
        ray.kill(watch)


def _machines() -> set[str]:
    """Return the ids of the machines on which this Ray job has actors, but for those that watch."""
    job = ray.get_runtime_context().worker.current_job_id
    actors = ray._private.state.actors(job_id=job, actor_state_name="ALIVE")
    name = MachineWatch.__ray_metadata__.class_name  # type: ignore[attr-defined]
    return {actor["Address"]["NodeID"] for actor in actors.values() if actor["ActorClassName"] != name}
