"""Tasks by an attendant: one process that outlives them, as it runs nothing untrusted but starts programs that do.

A fork, and a page copied for every object that is touched after it, is most of what a task costs: an attendant and its
supervisor do without. What a task started ends with it; its folder is made for it and deleted after it.
"""

import os
import socket
from dataclasses import dataclass, replace

from turnmill.sandboxes import processes, wire, workspace
from turnmill.sandboxes.base import Limits, Task
from turnmill.sandboxes.child import fork_program
from turnmill.sandboxes.task_monitor import Pipes, Place, Run, Settings, wait_for_message


@dataclass(frozen=True, slots=True)
class Attendant:
    """A process that waits for tasks, with the limits that it has for good."""

    child: int
    number: int
    """Its process id as /proc shows it."""

    pipes: Pipes
    limits: Limits

    @classmethod
    def begin(cls, settings: Settings, place: Place, limits: Limits) -> "Attendant":
        """Fork one."""
        pipes = Pipes()
        child = fork_program(settings, place, pipes, attends=True)
        for descriptor in pipes.theirs:
            os.close(descriptor)
        (number,) = processes.children()
        return cls(child, number, pipes, limits)

    def close(self) -> None:
        """Close the ways to it."""
        for descriptor in self.pipes.ours:
            os.close(descriptor)


class AttendedRun(Run):
    """It is over when its value is there; its process and the pipes belong to the attendant."""

    def __init__(self, settings: Settings, task: Task, attendant: Attendant, place: Place) -> None:
        super().__init__(settings, task, attendant.pipes, attendant.child, place)
        self.open = set()
        self._attendant = attendant
        self.cpu_seconds_before = processes.usage([attendant.number]).cpu_seconds

    @property
    def may_go_on(self) -> bool:
        """Whether the attendant lives and has nothing of this task left."""
        return self.limit is None and not self.cancelled and self._is_answered()

    def _is_answered(self) -> bool:
        return self._value() is not None

    def _exit_code(self) -> int | None:
        return 0 if self.may_go_on else super()._exit_code()

    def end(self) -> None:
        """Read the rest of what it wrote; kill the attendant if it is not at the end."""
        if not self.may_go_on:
            super().end()
            return
        if processes.children_of(self._attendant.number):
            raise RuntimeError("a process outlived its task")
        self._drain()


class PersistentTasks:
    """Serves tasks by an attendant, and by another one when that has ended or a task has other limits."""

    def __init__(self, settings: Settings, place: Place, user: int) -> None:
        self._settings = settings
        self._place = place
        self._user = user
        self._attendant: Attendant | None = None
        workspace.create_around(place.folder, user)
        workspace.fill(place.folder, user)

    def serve(self, connection: socket.socket, alive: int) -> bool:
        """Wait for a task and run it; whether there may be another."""
        message = wait_for_message(connection, alive, [])
        if message is None:
            return False
        task = wire.unpack_task(*wire.unpack(*message))
        run: AttendedRun | None = None
        try:
            run = AttendedRun(self._settings, task, self._fitting(task.limits), self._place)
            run.start(b"".join(message))
            run.watch(connection, alive)
            run.end()
            reply = run.reply()
            if not run.may_go_on:
                self._end()
        except Exception as error:
            self._end()
            reply = wire.pack_failure(f"{type(error).__name__}: {error}")
        workspace.empty(self._place.folder)
        if run is not None and run.cancelled:
            return False
        connection.sendall(reply)
        workspace.fill(self._place.folder, self._user)
        return True

    def _fitting(self, limits: Limits) -> Attendant:
        """One that has these limits; those of time and output are watched from here."""
        lasting = replace(limits, seconds=0, cpu_seconds=0, output_bytes=0)
        if self._attendant is None or self._attendant.limits != lasting:
            self._end()
            self._attendant = Attendant.begin(self._settings, self._place, lasting)
        return self._attendant

    def _end(self) -> None:
        processes.end_all(self._settings.barriers, self._place.user)
        if self._attendant is not None:
            self._attendant.close()
            self._attendant = None
