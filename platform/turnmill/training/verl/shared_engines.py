"""Engines and servers that a run cannot replace: when one dies, the attempt ends at once."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle

from turnmill.core.errors import RunFailedError
from turnmill.rollout.actor_deaths import DEATHS

CHECK_SECONDS = 2.0

log = logging.getLogger(__name__)


ENGINE_DIED = "An inference engine has died, which shares devices with the trainer"


@contextmanager
def ended_with(
    servers: Sequence[ActorHandle], workers: Sequence[ActorHandle], *, message: str = ENGINE_DIED
) -> Iterator[None]:
    """End the trainer's workers when one of the servers dies; raises RunFailedError with the message then.

    verl cannot start an engine anew that shares devices with the trainer, and a worker that sends weights to one that
    is gone waits for ever.
    """
    died, over = threading.Event(), threading.Event()

    def watch() -> None:
        if wait_for_death(servers, over):
            died.set()
            log.error("The trainer's workers end", extra={"because": message})
            for worker in workers:
                ray.kill(worker)

    threading.Thread(target=watch, daemon=True, name="server-deaths").start()
    try:
        yield
    except Exception as error:
        if not died.is_set():
            raise
        raise RunFailedError(
            f"{message}: its log says why. `--resume` continues from the last checkpoint.",
            "engines_died",
        ) from error
    finally:
        over.set()


def wait_for_death(servers: Sequence[ActorHandle], over: threading.Event) -> bool:
    """Wait until one of the actors dies and return True, or until the event and return False."""
    lives = {server.live.remote(): server for server in servers}
    while not over.is_set():
        ended, _ = ray.wait(list(lives), timeout=CHECK_SECONDS)
        for life in ended:
            server = lives.pop(life)
            try:
                ray.get(life)
            except DEATHS:
                return not over.is_set()
            except ray.exceptions.ActorUnavailableError:
                # Its machine does not answer, and may come back.
                over.wait(CHECK_SECONDS)
                lives[server.live.remote()] = server
    return False
