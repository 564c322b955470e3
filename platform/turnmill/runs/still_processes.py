"""Processes of a run on this machine that stand still: they are killed, and replaced as those that have died.

One that was stopped, by a signal or with its container, keeps its step waiting until the run is taken for stalled. If
Ray's node or its controller (GCS) ends, so does the attempt: without the latter, all goes on for a minute, and then
each of Ray's processes exits without a word, the one that started the run as well.
"""

import logging
import re
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from turnmill.core.activity import STOPPED_LOOKS, Stillness, Stops, has_ended, shows_activity
from turnmill.core.errors import RunFailedError
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.processes import send_signal
from turnmill.runs.watcher import watching
from turnmill.training.agent_kinds import agent_kind

LOOK_SECONDS = 0.5
RESUMED_LOOKS, STILL_LOOKS = 2, 9
"""Looks in a row at a process that does nothing, and that no signal has stopped: a worker whose trajectories another
one resumes, and any other, whose death may end the attempt."""

# Ray's title has the class, and in a method that of the method: often verl's. verl's workers of rewards are none.
_LOOP_WORKER = re.compile(
    rb"ray::(AgentLoopWorker\w*|(Tool|Grl|Episode|Turn)?LoopWorker|(Trajectory|MultiTurn|Harness)Worker)\b"
)
RAY_AGENT = re.compile(rb"ray::(Dashboard|RuntimeEnv)Agent\b")
"""Ray's own, with which its node dies."""

_FORK_SERVER = b"turnmill.runs.fork_server.server"
"""In the titles of its client and of its forks as well; these show activity unless they are fork servers themselves."""

log = logging.getLogger(__name__)


class RayNode:
    """Ray's own processes without which an attempt cannot go on."""

    def __init__(self, names: Mapping[int, str], folder: RunFolder) -> None:
        self._names = names
        self._folder = folder
        self._stops = Stops()

    @property
    def pids(self) -> Collection[int]:
        """Ids of the processes."""
        return self._names.keys()

    def look(self, *, kill: bool) -> None:
        """End the attempt if one of them has ended; kill one that is stopped, if that is wanted."""
        for pid, name in self._names.items():
            if has_ended(pid):
                # Where the disk is full, the next look ends it.
                with suppress(OSError):
                    self._folder.write_failure(_ended(name))
            elif self._stops.look(pid) >= STOPPED_LOOKS and kill:
                _kill(pid, name)


def _ended(name: str) -> RunFailedError:
    return RunFailedError(
        f"Ray's {name} has ended, most often for lack of memory. `--resume` carries on from the last checkpoint.",
        "ray_died",
    )


@contextmanager
def still_processes_killed(
    job: AgentTrainingJob, mark: str, *, can_retry: bool, node: RayNode | None = None
) -> Iterator[None]:
    """Kill processes with a mark that stand still, while the context lasts.

    Those whose death may end the attempt only if another one would follow: they could still go on.
    """
    others = STILL_LOOKS if can_retry else None
    workers = RESUMED_LOOKS if agent_kind(job.spec.agent).uses_store else others
    with watching(partial(_watch, mark, workers, others, node), "still-processes"):
        yield


def _watch(
    mark: str, worker_looks: int | None, other_looks: int | None, node: RayNode | None, over: threading.Event
) -> None:
    stillness, stops = Stillness(), Stops()
    while not over.wait(LOOK_SECONDS):
        if node is not None:
            node.look(kill=other_looks is not None)
        for pid, title, is_busy in _watched(mark, set() if node is None else node.pids):
            looks = worker_looks if _LOOP_WORKER.match(title) else other_looks
            if looks is None:
                continue
            if stops.look(pid) >= STOPPED_LOOKS or (is_busy and stillness.look(pid) == looks):
                _kill(pid, title.decode())


def _kill(pid: int, title: str) -> None:
    log.warning("Process stands still and is killed", extra={"process_id": pid, "title": title})
    send_signal(pid, signal.SIGKILL)


def _watched(mark: str, node: Collection[int]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield pid, title, and whether a thread always runs there, of Ray's workers and fork servers with a mark.

    So too of Ray's agents, which do nothing between two requests, as a fork server. They are known by their parent, a
    process of `node`, as their titles take the place of their environment.
    """
    needle = f"{PROCESS_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title, pid = (entry / "cmdline").read_bytes(), int(entry.name)
            is_agent, is_ray = RAY_AGENT.match(title) is not None, title.startswith(b"ray::")
            if is_agent:
                is_ours = psutil.Process(pid).ppid() in node
            else:
                is_named = is_ray or _FORK_SERVER in title
                is_ours = is_named and needle in (entry / "environ").read_bytes().split(b"\0")
            if is_ours:
                yield pid, title.rstrip(b"\0 "), not is_agent and (is_ray or shows_activity(pid))
        except (OSError, psutil.NoSuchProcess):
            continue
