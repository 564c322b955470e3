"""The parent of tasks, one after the other: it has a process ready for the next, watches it, ends it with all it left
behind, and alone reports how it went.

It outlives its tasks because a fork and what follows from it are most of what a task costs. So nothing that a task
wrote is ever run or imported here, and the next task gets a process, a folder and pipes of its own.
"""

import os
import socket
import sys
from typing import NoReturn

from turnmill.sandboxes import kernel, processes, wire, workspace
from turnmill.sandboxes.child import fork_program
from turnmill.sandboxes.confinement import build_environment, confine_supervisor
from turnmill.sandboxes.persistent_worker import PersistentTasks
from turnmill.sandboxes.task_monitor import Pipes, Place, Run, Settings, wait_for_message

_SEND_SECONDS = 30.0


def supervise(settings: Settings, connection: socket.socket, alive: int, place: Place, *, attended: bool) -> NoReturn:
    """Run the tasks that come over the connection until it ends, or the zygote does; then end."""
    try:
        kernel.adopt_orphans()
        confine_supervisor(settings.barriers, settings.own_rules)
        os.environ.clear()
        os.environ.update(build_environment(place.home, f"{place.folder}/{workspace.TEMPORARY}"))
        connection.settimeout(_SEND_SECONDS)
        if attended and place.user is not None:
            tasks = PersistentTasks(settings, place, place.user)
            while tasks.serve(connection, alive):
                pass
        while not attended and _serve(settings, place, connection, alive):
            pass
        processes.end_all(settings.barriers, place.user)
        workspace.remove(place.folder)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)


def _serve(settings: Settings, place: Place, connection: socket.socket, alive: int) -> bool:
    """Make everything ready, wait for a task and run it; whether there may be another."""
    workspace.create(place.folder, place.user)
    pipes = Pipes()
    child = fork_program(settings, place, pipes)
    for descriptor in pipes.theirs:
        os.close(descriptor)
    opened: list[int] = []
    message = wait_for_message(connection, alive, opened)
    if message is None:
        return False
    header, blobs = wire.unpack(*message)
    task = wire.unpack_task(header, blobs)
    run = Run(settings, task, pipes, child, place)
    try:
        for name, descriptor in zip(task.copies, opened, strict=True):
            workspace.copy_in(place.folder, name, descriptor, place.user)
            os.close(descriptor)
        run.start(wire.pack(header, [b"", *blobs[1:]]) if task.stdin else b"".join(message))
        run.watch(connection, alive)
        run.end()
        reply = run.reply()
    except Exception as error:
        processes.end_all(settings.barriers, place.user)
        reply = wire.pack_failure(f"{type(error).__name__}: {error}")
    run.close()
    workspace.remove(place.folder)
    if not run.cancelled:
        connection.sendall(reply)
    return not run.cancelled
