"""Parent of tasks: keeps a process ready, monitors its task, ends all processes of the task, and reports the result.

It serves many tasks, because most of a task's cost is a fork and its consequences. Nothing that a task wrote is run or
imported here, and the next task gets a process, a folder and pipes of its own.
"""

import os
import socket
import sys
from typing import NoReturn

from turnmill.core import forking
from turnmill.sandboxes import processes, wire, workspaces
from turnmill.sandboxes.child import Pipes, SupervisorSettings, fork_child
from turnmill.sandboxes.confinement import build_environment, confine_supervisor
from turnmill.sandboxes.persistent_worker import PersistentTaskServer
from turnmill.sandboxes.task_monitor import TaskMonitor
from turnmill.sandboxes.workspaces import Workspace

_SEND_SECONDS = 30.0


def supervise(
    settings: SupervisorSettings,
    connection: socket.socket,
    parent_pipe: int,
    workspace: Workspace,
    *,
    persistent: bool,
) -> NoReturn:
    """Run the tasks of a connection until it is closed or the fork server ends, then exit.

    `parent_pipe` becomes readable when the fork server has ended.
    """
    try:
        forking.adopt_orphans()
        confine_supervisor(settings.barriers, settings.supervisor_rules)
        os.environ.clear()
        os.environ.update(build_environment(workspace.home, workspace.temporary))
        connection.settimeout(_SEND_SECONDS)
        if persistent and workspace.user is not None:
            server = PersistentTaskServer(settings, workspace.folder, workspace.user)
            while server.serve_task(connection, parent_pipe):
                pass
        while not persistent and _serve_task(settings, workspace, connection, parent_pipe):
            pass
        processes.kill_descendants(settings.barriers, workspace.user)
        workspaces.remove(workspace.folder)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)


def _serve_task(
    settings: SupervisorSettings, workspace: Workspace, connection: socket.socket, parent_pipe: int
) -> bool:
    """Prepare a process, wait for a task and run it; return True if there may be another."""
    workspaces.create(workspace.folder, workspace.user)
    pipes = Pipes()
    child = fork_child(settings, workspace, pipes)
    copies: list[int] = []
    message = wire.wait_for_message(connection, parent_pipe, copies)
    if message is None:
        return False
    header, blobs = wire.unpack(*message)
    task = wire.unpack_task(header, blobs)
    monitor = TaskMonitor(settings, task, pipes, child, workspace)
    try:
        for name, descriptor in zip(task.copies, copies, strict=True):
            workspaces.copy_in(workspace.folder, name, descriptor, workspace.user)
            os.close(descriptor)
        monitor.start(wire.pack(header, [b"", *blobs[1:]]) if task.stdin else b"".join(message))
        monitor.watch(connection, parent_pipe)
        monitor.finish()
        report = monitor.pack_report()
    except Exception as error:
        processes.kill_descendants(settings.barriers, workspace.user)
        report = wire.pack_failure(f"{type(error).__name__}: {error}")
    monitor.close()
    workspaces.remove(workspace.folder)
    if not monitor.cancelled:
        connection.sendall(report)
    return not monitor.cancelled
