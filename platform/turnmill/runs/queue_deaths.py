"""Processes of verl's queue: when one dies, the attempt ends within seconds.

What was to be learned from goes with them, and whoever asks them waits for an answer without an end.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import ray
from ray.actor import ActorHandle

from turnmill.core.errors import RunFailedError
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.actor_deaths import DEATHS
from turnmill.runs.watcher import watching

LOOK_SECONDS = 1.0

CONTROLLER, CONTROLLERS_NAMESPACE = "TransferQueueController", "transfer_queue"
STORAGE = "TransferQueueStorageUnit#"
"""Names that the queue gives to its actors; those of storage end with a number."""

log = logging.getLogger(__name__)


@contextmanager
def queue_deaths_noticed(folder: RunFolder) -> Iterator[None]:
    """Request the end of the attempt if an actor of the queue, which has been started, dies in the context."""
    names = [name for name in ray.util.list_named_actors() if name.startswith(STORAGE)]
    actors = {name: ray.get_actor(name) for name in names}
    actors[CONTROLLER] = ray.get_actor(CONTROLLER, namespace=CONTROLLERS_NAMESPACE)
    with watching(partial(_watch, actors, folder), "queue-deaths"):
        yield


def _watch(actors: dict[str, ActorHandle], folder: RunFolder, over: threading.Event) -> None:
    answers = {actor.__ray_ready__.remote(): name for name, actor in actors.items()}
    while not over.wait(LOOK_SECONDS):
        for answer in ray.wait(list(answers), num_returns=len(answers), timeout=0)[0]:
            name = answers.pop(answer)
            try:
                ray.get(answer)
            except DEATHS as error:
                log.error("A process of the queue has died", exc_info=error)
                _end_attempt(name, folder, over)
                return
            except ray.exceptions.RayError as error:
                # Its machine does not answer, and may come back.
                log.warning("A process of the queue does not answer", extra={"actor": name, "error": str(error)})
            answers[actors[name].__ray_ready__.remote()] = name


def _end_attempt(name: str, folder: RunFolder, over: threading.Event) -> None:
    """Write the reason, and again where the disk is full."""
    failure = RunFailedError(
        f"A process of verl's queue ({name}) has died, most often for lack of memory. `--resume` carries on from the "
        "last checkpoint.",
        "queue_died",
    )
    while not folder.failure.exists():
        try:
            folder.write_failure(failure)
        except OSError:
            if over.wait(LOOK_SECONDS):
                return
