"""Ids of Ray's actor classes from the system, so that forks of a process draw ids of their own.

Ray draws ids of tasks and objects from a generator whose seed a process takes from the system when it first draws. A
fork of a process that has drawn goes on with its numbers: two agent-loop workers then send tasks with the same ids, and
the actor that gets both ends with "Check failed: erased == 1".
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
    """In place of `ActorClassID`, as far as Ray uses the name."""

    @staticmethod
    def from_random() -> ray.ActorClassID:
        """An id from the system's random numbers."""
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


def apply() -> None:
    """Patch this process, before any module is imported that declares an actor class."""
    replace_once(ray.actor, "ActorClassID", lambda _: _SystemClassIds)


def differ_in_forks() -> bool:
    """True if Ray has not drawn an id yet, so that every fork of this process gets ids of its own."""
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
