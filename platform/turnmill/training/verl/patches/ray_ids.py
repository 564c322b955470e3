"""Random ids of Ray in processes that are forks of one another; importing it patches Ray.

Ray draws ids of tasks and objects from a generator whose seed a process takes from the system when it first draws. A
fork of a process that has drawn goes on with its numbers: two agent-loop workers then send tasks with the same ids, and
the actor that gets both ends with "Check failed: erased == 1".
"""

import os

import ray
import ray.actor


class _SystemClassIds:
    """In place of `ActorClassID`: Ray 2.60.0 draws one for every actor class that a module declares."""

    @staticmethod
    def from_random() -> ray.ActorClassID:
        """An id from the system's random numbers."""
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


ray.actor.ActorClassID = _SystemClassIds


def differ_in_forks() -> bool:
    """Whether Ray has not drawn yet, so that every fork of this process gets numbers of its own."""
    return _drawn_in_a_fork() != _drawn_in_a_fork()


def _drawn_in_a_fork() -> bytes:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, ray.NodeID.from_random().binary())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as drawn:
        return drawn.read()
