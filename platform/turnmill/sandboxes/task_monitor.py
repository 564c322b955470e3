"""Monitors one task: moves its input and output, watches its limits, ends its processes and reports the result.

The task's bytes pass between files and pipes, never through this process's memory, from which the next task's process
is forked. Where that cannot be, as with names of files, `holds_text` says so, and the supervisor ends.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from turnmill.sandboxes import measurements, memory_files, processes, wire, workspaces
from turnmill.sandboxes.base import Limit
from turnmill.sandboxes.child import READY, Pipes, SupervisorSettings
from turnmill.sandboxes.cpu_time import TaskCpuTime, group_of
from turnmill.sandboxes.workspaces import Workspace

_FLOOD = 64
"""Multiple of its limit that output may reach before the task is ended."""

_FIRST_CHECK_SECONDS, _LAST_CHECK_SECONDS = 0.01, 0.1
_PAUSE_PER_CHECK = 20
"""Minimum pause between checks as a multiple of the duration of the last one, so that checks on a busy machine take
little time from tasks."""

_CPU_TOLERANCE = 0.1
"""Share of its CPU time that a task may use beyond it, as the kernel's own signal ends most tasks at the limit."""


class TaskMonitor:
    """Monitors a task from the moment it is handed to its process."""

    def __init__(
        self,
        settings: SupervisorSettings,
        task: wire.TaskOutline,
        file: int,
        pipes: Pipes,
        child: int,
        workspace: Workspace,
        earlier_cpu_seconds: float = 0.0,
    ) -> None:
        """Monitor the task whose request and standard input are in `file`.

        The process has used `earlier_cpu_seconds` for earlier tasks.
        """
        self.settings = settings
        self.task = task
        self.file = file
        self.pipes = pipes
        self.child = child
        self.workspace = workspace
        self.open_descriptors = {file, *pipes.supervisor_ends}
        self.wait_status: int | None = None
        self.limit: Limit | None = None
        self.cancelled = False
        self.holds_text = False
        """True if this process's memory may have text of the task."""

        self.status = bytearray()
        self.request = memory_files.Input(file, 0, task.request_bytes)
        self.stdin = memory_files.Input(file, task.request_bytes, task.request_bytes + task.stdin_bytes)
        self.output = {
            pipe: memory_files.Output(pipe, task.limits.output_bytes) for pipe in (pipes.stdout[0], pipes.stderr[0])
        }
        self.value = memory_files.Output(pipes.value[0], self._max_value_bytes() + 1)
        self.elapsed_seconds = 0.0
        group = group_of(workspace.folder) if settings.barriers.own_cgroup else None
        self.cpu_time = TaskCpuTime(earlier_cpu_seconds, time.monotonic(), group)

    def start(self) -> None:
        """Pass the request on; the task's process reads all of it before anything untrusted runs."""
        self.started = time.monotonic()
        with suppress(BrokenPipeError):  # The process failed before; the status pipe says how.
            while self.request.move(self.pipes.request[1]):
                pass
        self.close(self.pipes.request[1])
        for descriptor in (*self.output, self.pipes.stdin[1], self.pipes.status[0], self.pipes.value[0]):
            os.set_blocking(descriptor, False)

    def watch(self, connection: socket.socket, parent_pipe: int) -> None:
        """Transfer input and output until the program ends or reaches a limit, or server or fork server have ended."""
        child_exit = processes.ExitWatcher(self.child)
        poll = select.poll()
        for descriptor in (*self.output, child_exit.descriptor, parent_pipe, connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        if self.task.returns_value:
            poll.register(self.pipes.value[0], select.POLLIN)
        if self.stdin:
            poll.register(self.pipes.stdin[1], select.POLLOUT)
        else:
            self.close(self.pipes.stdin[1])
        pause, next_check = _FIRST_CHECK_SECONDS, self.started + _FIRST_CHECK_SECONDS
        deadline = self.started + self.task.limits.seconds
        while True:
            now = time.monotonic()
            ready = dict(poll.poll(max(0.0, min(next_check, deadline) - now) * 1000))
            if connection.fileno() in ready or parent_pipe in ready:
                self.cancelled = True
                break
            if (
                self._transfer(ready, poll)
                or self._has_returned()
                or (child_exit.descriptor in ready and child_exit.has_exited())
            ):
                break
            now = time.monotonic()
            if now >= deadline:
                self.limit = "time"
                break
            if now >= next_check:
                self.limit = self._find_exceeded_limit()
                if self.limit:
                    break
                checked = time.monotonic()
                pause = min(max(2 * pause, _PAUSE_PER_CHECK * (checked - now)), _LAST_CHECK_SECONDS)
                next_check = checked + pause * _random_share()
        self.elapsed_seconds = time.monotonic() - self.started
        child_exit.close()

    def _transfer(self, ready: dict[int, int], poll: select.poll) -> bool:
        """Transfer the bytes that are ready; return True if a limit on output is reached."""
        for descriptor in ready:
            if descriptor == self.pipes.stdin[1]:
                if not self._write_stdin():
                    poll.unregister(descriptor)
                    self.close(descriptor)
            elif descriptor in self.output:
                if not self.output[descriptor].move():
                    poll.unregister(descriptor)
            elif descriptor == self.pipes.value[0] and not self.value.move():
                poll.unregister(descriptor)
        flood = _FLOOD * max(self.task.limits.output_bytes, memory_files.CHUNK)
        received = max(output.num_received for output in self.output.values())
        if received > flood or self.value.num_received > self._max_value_bytes():
            self.limit = "output"
        return self.limit is not None

    def _max_value_bytes(self) -> int:
        return max(self.task.limits.file_bytes, self.task.limits.output_bytes) + memory_files.NUMBER_BYTES

    def _write_stdin(self) -> bool:
        """Write a chunk of stdin; return True if there is more."""
        try:
            return self.stdin.move(self.pipes.stdin[1])
        except BrokenPipeError:
            return False

    def _find_exceeded_limit(self) -> Limit | None:
        """Return the first limit that the program and its descendants exceed together."""
        limits = self.task.limits
        pids = self._descendants()
        found = measurements.processes_of(pids)
        used_cpu_seconds = self.cpu_time.add(found, pids, time.monotonic())
        if sum(process.threads for process in found.values()) > limits.processes:
            return "processes"
        if used_cpu_seconds >= limits.cpu_seconds + min(1.0, _CPU_TOLERANCE * limits.cpu_seconds):
            return "cpu"
        held = measurements.measure_held(
            found.values(),
            self.workspace.folder,
            max_file_bytes=limits.file_bytes,
            # The first checks are of many brief tasks, and it is the last ones that bound what is held for long.
            with_mappings=time.monotonic() - self.started >= _LAST_CHECK_SECONDS / 2,
        )
        self.holds_text = self.holds_text or held.has_names
        if held.hidden:
            return "files"
        memory = measurements.measure_memory(found.values()) + held.kernel_bytes - self.settings.base_resident_bytes
        if (
            memory > limits.memory_bytes
            and memory - measurements.measure_saved_by_sharing(found.values()) > limits.memory_bytes
        ):
            return "memory"
        try:
            usage_of_disk = workspaces.measure_disk_usage(self.workspace.folder)
        except workspaces.TooLargeError:
            self.holds_text = True
            return "files"
        self.holds_text = self.holds_text or usage_of_disk.has_names
        return "files" if usage_of_disk.bytes + held.deleted_bytes > limits.file_bytes else None

    def _descendants(self) -> list[int]:
        """Return the live descendants, including the program's process."""
        for pid, wait_status in processes.reap().items():
            if pid == self.child:
                self.wait_status = wait_status
        return processes.descendants()

    def finish(self) -> None:
        """Kill the remaining processes, then read their last output."""
        if self.limit is None and not self.cancelled:
            if self.wait_status is None:
                self.wait_status = os.waitpid(self.child, 0)[1]
            # A program may start too many processes and end before the next check.
            if len(self._descendants()) > self.task.limits.processes:
                self.limit = "processes"
        ended = processes.kill_descendants(self.settings.barriers, self.workspace.user)
        self.wait_status = ended.get(self.child, self.wait_status)
        self._drain()

    def _drain(self) -> None:
        for pipe, output in (*self.output.items(), (self.pipes.value[0], self.value)):
            while _is_readable(pipe) and output.move():
                pass
        while _is_readable(self.pipes.status[0]) and (chunk := os.read(self.pipes.status[0], wire.MAX_FAILURE)):
            self.status += chunk

    def report(self) -> tuple[wire.Report, list[int]]:
        """Return the result and descriptors of its files; what is said of the end is from kernel and clock only."""
        if bytes(self.status) != READY and self.limit is None:
            self.holds_text = True
            reason = self.status.decode(errors="replace") or "the process ended before the program began"
            return wire.Report(failure=reason[: wire.MAX_FAILURE]), []
        exit_code = self._exit_code()
        limit = self.limit or self._limit_by_signal(exit_code)
        stdout, stderr = self.output.values()
        kept = self._collect_files() if self.task.keep_files else None
        outputs = [stdout, stderr, *([self.value] if exit_code == 0 and self._returned_value() else [])]
        report = wire.Report(
            exit_code=exit_code if limit is None and exit_code is not None and exit_code >= 0 else None,
            truncated=stdout.truncated or stderr.truncated,
            limit=limit,
            seconds=self.elapsed_seconds,
            stdout=stdout.size,
            stderr=stderr.size,
            value=self.value.size if self.value in outputs else 0,
            files=0 if kept is None else os.fstat(kept).st_size,
        )
        files = [output.descriptor for output in outputs if output.descriptor is not None and output.size]
        return report, files + ([] if kept is None else [kept])

    def _collect_files(self) -> int | None:
        """Return the descriptor of a file with the workspace's files; None if they are too large."""
        self.holds_text = True
        files = workspaces.collect(self.workspace.home, self.task.limits.file_bytes)
        if files is None:
            return None
        self.open_descriptors.add(descriptor := memory_files.create(wire.pack_files(files)))
        return descriptor

    def close(self, *descriptors: int) -> None:
        """Close these ends of the pipes, by default all open ones and the task's files."""
        for descriptor in self.open_descriptors.intersection(descriptors or self.open_descriptors):
            self.open_descriptors.discard(descriptor)
            os.close(descriptor)
        if not descriptors:
            for output in (*self.output.values(), self.value):
                output.close()

    def _has_returned(self) -> bool:
        """Return True if the task has ended although its process lives."""
        return False

    def _exit_code(self) -> int | None:
        return None if self.limit or self.wait_status is None else os.waitstatus_to_exitcode(self.wait_status)

    def _limit_by_signal(self, exit_code: int | None) -> Limit | None:
        """Return the rlimit behind a fatal signal, if the CPU time used confirms it."""
        cpu_seconds = self.cpu_time.ended_children_seconds() - self.cpu_time.earlier_seconds
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_seconds >= self.task.limits.cpu_seconds / 2:
            return "cpu"
        return "files" if exit_code == -signal.SIGXFSZ else None

    def _returned_value(self) -> bool:
        """Return True if the task has returned a whole value, which begins with its length."""
        return self.value.number() == self.value.size - memory_files.NUMBER_BYTES


def _random_share() -> float:
    """Return a number from 0.5 to 1: a task cannot know when it is checked. Its own generators are copies of ours."""
    return 0.5 + os.urandom(1)[0] / 510


def _is_readable(descriptor: int) -> bool:
    """Return True if a read would not block; all possible writers have ended."""
    return bool(select.select([descriptor], [], [], 0)[0])
