"""Parent of tasks: keeps a process ready, monitors its task, ends all processes of the task, and reports the result.

It serves many tasks, because most of a task's cost is a fork and its consequences. Nothing that a task wrote is run or
imported here, and the next task gets a process, a folder and pipes of its own. As that process is forked from this one,
no bytes of a task are read here; after a task where that cannot be avoided, the supervisor ends.
"""

import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from turnmill.core import forking
from turnmill.sandboxes import kernel, processes, wire, workspaces
from turnmill.sandboxes.base import Limits
from turnmill.sandboxes.child import Pipes, SupervisorSettings, fork_child
from turnmill.sandboxes.confinement import build_environment, confine_supervisor
from turnmill.sandboxes.cpu_time import group_of
from turnmill.sandboxes.namespaces import mount_workspace
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
        if settings.barriers.own_mounts:
            kernel.unshare(kernel.CLONE_NEWNS)  # Mounts of workspaces end with this process.
        if settings.barriers.own_cgroup:
            os.mkdir(group_of(workspace.folder))
        confine_supervisor(settings.barriers, settings.supervisor_rules)
        os.environ.clear()
        os.environ.update(build_environment(workspace.home, workspace.temporary))
        connection.settimeout(_SEND_SECONDS)
        if persistent and workspace.user is not None:
            server = PersistentTaskServer(settings, workspace.folder, workspace.user)
            while server.serve_task(connection, parent_pipe):
                pass
        file_bytes = None if persistent else Limits().file_bytes
        while file_bytes is not None:
            file_bytes = _serve_task(settings, workspace, connection, parent_pipe, file_bytes)
        processes.kill_descendants(settings.barriers, workspace.user)
        _remove(settings, workspace)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)


def _serve_task(
    settings: SupervisorSettings, workspace: Workspace, connection: socket.socket, parent_pipe: int, file_bytes: int
) -> int | None:
    """Prepare a process, wait for a task and run it; return its limit on files, or None if there may be no other task.

    A file system of the workspace's own is prepared for a limit of `file_bytes`.
    """
    pipes, child = _prepare(settings, workspace, file_bytes)
    message = wire.wait_for_outline(connection, parent_pipe)
    if message is None:
        return None
    task, (file, *copies) = message
    if settings.barriers.own_mounts and task.limits.file_bytes != file_bytes:
        processes.kill_descendants(settings.barriers, workspace.user)
        for descriptor in pipes.supervisor_ends:
            os.close(descriptor)
        _remove(settings, workspace)
        pipes, child = _prepare(settings, workspace, task.limits.file_bytes)
    monitor = TaskMonitor(settings, task, file, pipes, child, workspace)
    files: list[int] = []
    try:
        for name, descriptor in zip(task.copies, copies, strict=True):
            workspaces.copy_in(workspace.folder, name, descriptor, workspace.user)
            os.close(descriptor)
        monitor.start()
        monitor.watch(connection, parent_pipe)
        monitor.finish()
        report, files = monitor.report()
        may_go_on = not monitor.holds_text and not task.copies
    except Exception as error:
        processes.kill_descendants(settings.barriers, workspace.user)
        report, may_go_on = wire.failure(error), False
    may_go_on = _remove(settings, workspace) and may_go_on and not monitor.cancelled
    if not monitor.cancelled:
        wire.send_report(connection, replace(report, last=not may_go_on), files)
    monitor.close()
    return task.limits.file_bytes if may_go_on else None


def _prepare(settings: SupervisorSettings, workspace: Workspace, file_bytes: int) -> tuple[Pipes, int]:
    """Create a workspace, and fork the process of the next task."""
    if settings.barriers.own_mounts:
        mount_workspace(workspace.folder, settings.barriers.workspace_bytes(file_bytes))
    workspaces.create(workspace.folder, workspace.user)
    pipes = Pipes()
    return pipes, fork_child(settings, workspace, pipes)


def _remove(settings: SupervisorSettings, workspace: Workspace) -> bool:
    """Delete a workspace, none of whose processes is left; return True if no names of files were read."""
    if not settings.barriers.own_mounts:
        return workspaces.remove(workspace.folder)
    with suppress(OSError):  # It is not there after a task that was the last one.
        kernel.unmount(workspace.folder)
        os.rmdir(workspace.folder)
    return True
