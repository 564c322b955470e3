"""Agent loop workers of this machine that stand still: they are killed, and the trainer replaces them.

A worker that was stopped, by a signal or with its container, keeps its step waiting until the run is taken for stalled.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnmill.core.activity import Stillness
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.jobs import AgentTrainingJob
from turnmill.runs.processes import send_signal
from turnmill.training.agent_kinds import agent_kind

LOOK_SECONDS, STILL_LOOKS = 0.5, 3

# Ray's title has the class, and in a method that of the method: often verl's. verl's workers of rewards are none.
_TITLE = re.compile(rb"ray::(AgentLoopWorker\w*|(Tool|Grl)?LoopWorker|(Trajectory|MultiTurn|Harness)Worker)\b")

log = logging.getLogger(__name__)


@contextmanager
def still_workers_killed(job: AgentTrainingJob, mark: str) -> Iterator[None]:
    """Kill workers with a mark that stand still, while the context lasts, if others can resume their trajectories."""
    if not agent_kind(job.spec.agent).uses_store:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(mark, over), daemon=True, name="still-workers")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(mark: str, over: threading.Event) -> None:
    stillness = Stillness()
    while not over.wait(LOOK_SECONDS):
        for pid in _workers(mark):
            if stillness.look(pid) == STILL_LOOKS:
                log.warning("Agent loop worker stands still and is killed", extra={"process_id": pid})
                send_signal(pid, signal.SIGKILL)


def _workers(mark: str) -> Iterator[int]:
    """Yield the processes of agent loop workers with a mark."""
    needle = f"{PROCESS_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = _TITLE.match((entry / "cmdline").read_bytes()) is not None
            if is_worker and needle in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue
