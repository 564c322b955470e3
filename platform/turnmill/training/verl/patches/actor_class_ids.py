"""Random ids of Ray's actor classes that differ between forks of a process.

Ray draws ids of tasks and objects from a generator that a process seeds when it first uses it. A fork of a process that
has drawn an id continues with the same numbers: two agent-loop workers then send tasks with the same ids, and the actor
that gets both ends with "Check failed: erased == 1".
"""

import os

import ray
import ray.actor

from turnmill.training.verl.patches import Patch, replace_once

PATCH = Patch(
    target="ray.actor.ActorClassID",
    change="ids of actor classes come from the system",
    reason="Ray draws one for every actor class that a module declares, from a generator whose state forks share: "
    "tasks of two forks would have the same ids",
    distribution="ray",
    version="2.60.0",
    source="https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/actor.py#L2938",
    quote="ActorClassID.from_random(),",
)


class _SystemClassIds:
    """Replacement of `ActorClassID`, with the only method that Ray uses by this name."""

    @staticmethod
    def from_random() -> ray.ActorClassID:
        """Return an id from the operating system's random numbers."""
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


def apply() -> None:
    """Apply the patch in this process, before importing any module that declares an actor class."""
    replace_once(ray.actor, "ActorClassID", lambda _: _SystemClassIds)


def differ_in_forks() -> bool:
    """Return True if Ray has not drawn an id yet, so that each fork of this process draws different ids."""
    return _id_drawn_in_fork() != _id_drawn_in_fork()


def _id_drawn_in_fork() -> bytes:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, ray.NodeID.from_random().binary())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as drawn:
        return drawn.read()
