"""Tasks in a persistent worker: a process that serves many tasks, as it runs untrusted code only in programs it starts.

Most of a task's cost is a fork, and a page copied for every object that is used after it; a persistent worker and its
supervisor avoid both. Processes of a task end with it; its folder is created for it and deleted after it.
"""

import os
import socket
from dataclasses import dataclass, replace

from turnmill.sandboxes import measurements, processes, wire, workspaces
from turnmill.sandboxes.base import Limits
from turnmill.sandboxes.child import Pipes, SupervisorSettings, fork_child
from turnmill.sandboxes.task_monitor import TaskMonitor
from turnmill.sandboxes.workspaces import Workspace


@dataclass(frozen=True, slots=True)
class PersistentWorker:
    """A process that waits for tasks, under limits that cannot be changed."""

    pid: int
    proc_pid: int
    """Process id of the worker in /proc."""

    pipes: Pipes
    limits: Limits

    @classmethod
    def start(cls, settings: SupervisorSettings, workspace: Workspace, limits: Limits) -> "PersistentWorker":
        """Fork a worker."""
        pipes = Pipes()
        pid = fork_child(settings, workspace, pipes, persistent=True)
        (proc_pid,) = processes.children()
        return cls(pid, proc_pid, pipes, limits)

    def close(self) -> None:
        """Close the pipes to the worker."""
        for descriptor in self.pipes.supervisor_ends:
            os.close(descriptor)


class PersistentTaskMonitor(TaskMonitor):
    """Monitors a task that has ended when its value has arrived; process and pipes belong to the worker."""

    def __init__(
        self,
        settings: SupervisorSettings,
        task: wire.TaskOutline,
        file: int,
        worker: PersistentWorker,
        workspace: Workspace,
    ) -> None:
        found = measurements.processes_of([worker.proc_pid])
        earlier_cpu_seconds = sum(process.cpu_seconds for process in found.values())
        super().__init__(settings, task, file, worker.pipes, worker.pid, workspace, earlier_cpu_seconds)
        self.open_descriptors = {file}
        self._worker = worker

    @property
    def worker_is_reusable(self) -> bool:
        """True if the worker lives and nothing of this task remains."""
        return self.limit is None and not self.cancelled and self._has_returned()

    def _has_returned(self) -> bool:
        return self._returned_value()

    def _exit_code(self) -> int | None:
        return 0 if self.worker_is_reusable else super()._exit_code()

    def finish(self) -> None:
        """Read the remaining output; kill the worker if the task has not returned."""
        if not self.worker_is_reusable:
            super().finish()
            return
        if processes.children_of(self._worker.proc_pid):
            raise RuntimeError("a process outlived its task")
        self._drain()


class PersistentTaskServer:
    """Runs tasks in a persistent worker, and starts another one if it has ended or a task has other limits."""

    def __init__(self, settings: SupervisorSettings, folder: str, user: int) -> None:
        self._settings = settings
        self._workspace = Workspace(folder, user)
        self._user = user
        self._worker: PersistentWorker | None = None
        workspaces.create_reusable(folder, user)
        workspaces.create_folders(folder, user)

    def serve_task(self, connection: socket.socket, parent_pipe: int) -> bool:
        """Wait for a task and run it; return True if there may be another."""
        message = wire.wait_for_outline(connection, parent_pipe)
        if message is None:
            return False
        task, (file,) = message
        monitor: PersistentTaskMonitor | None = None
        files: list[int] = []
        try:
            worker = self._worker_with_limits(task.limits)
            monitor = PersistentTaskMonitor(self._settings, task, file, worker, self._workspace)
            monitor.start()
            monitor.watch(connection, parent_pipe)
            monitor.finish()
            report, files = monitor.report()
            if not monitor.worker_is_reusable:
                self._stop_worker()
        except Exception as error:
            self._stop_worker()
            report = wire.failure(error)
        workspaces.clear(self._workspace.folder)
        if monitor is not None and monitor.cancelled:
            return False
        wire.send_report(connection, report, files)
        if monitor is None:
            os.close(file)
        else:
            monitor.close()
        workspaces.create_folders(self._workspace.folder, self._user)
        return True

    def _worker_with_limits(self, limits: Limits) -> PersistentWorker:
        """Return a worker with these limits; time and output are limited from here, for each task."""
        lasting = replace(limits, seconds=0, cpu_seconds=0, output_bytes=0)
        if self._worker is None or self._worker.limits != lasting:
            self._stop_worker()
            self._worker = PersistentWorker.start(self._settings, self._workspace, lasting)
        return self._worker

    def _stop_worker(self) -> None:
        processes.kill_descendants(self._settings.barriers, self._user)
        if self._worker is not None:
            self._worker.close()
            self._worker = None
