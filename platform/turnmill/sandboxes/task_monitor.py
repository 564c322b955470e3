"""Monitors one task: moves its input and output, watches its limits, ends its processes and reports the result."""

import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress

from turnmill.sandboxes import processes, wire, workspaces
from turnmill.sandboxes.base import Function, Limit, SandboxResult, SandboxTask
from turnmill.sandboxes.child import READY, Pipes, SupervisorSettings
from turnmill.sandboxes.workspaces import Workspace

_CHUNK = 1 << 16
_FLOOD = 64
"""Multiple of its limit that output may reach before the task is ended."""

_FIRST_CHECK_SECONDS, _LAST_CHECK_SECONDS = 0.01, 0.1
_PAUSE_PER_CHECK = 20
"""Minimum pause between checks as a multiple of the duration of the last one, so that checks on a busy machine take
little time from tasks."""


class TaskMonitor:
    """Monitors a task from the moment it is handed to its process."""

    def __init__(
        self, settings: SupervisorSettings, task: SandboxTask, pipes: Pipes, child: int, workspace: Workspace
    ) -> None:
        self.settings = settings
        self.task = task
        self.pipes = pipes
        self.child = child
        self.workspace = workspace
        self.open_descriptors = set(pipes.supervisor_ends)
        self.wait_status: int | None = None
        self.limit: Limit | None = None
        self.cancelled = False
        self.truncated = False
        self.status, self.value = bytearray(), bytearray()
        self.output = {pipes.stdout[0]: bytearray(), pipes.stderr[0]: bytearray()}
        self.num_received = dict.fromkeys(self.output, 0)
        self.stdin = memoryview(task.stdin)
        self.elapsed_seconds = 0.0
        self.earlier_cpu_seconds = 0.0
        """CPU time that the process has used for earlier tasks."""

        self._earlier_children_cpu_seconds = _ended_children_cpu_seconds()

    def start(self, request: bytes) -> None:
        """Pass the task on; its process reads all of it before anything untrusted runs."""
        self.started = time.monotonic()
        remaining = memoryview(request)
        with suppress(BrokenPipeError):  # The process failed before; the status pipe says how.
            while remaining:
                remaining = remaining[os.write(self.pipes.request[1], remaining) :]
        self.close(self.pipes.request[1])
        for descriptor in (*self.output, self.pipes.stdin[1], self.pipes.status[0], self.pipes.value[0]):
            os.set_blocking(descriptor, False)

    def watch(self, connection: socket.socket, parent_pipe: int) -> None:
        """Transfer input and output until the program ends or reaches a limit, or server or fork server have ended."""
        child_exit = processes.ExitWatcher(self.child)
        poll = select.poll()
        for descriptor in (*self.output, child_exit.descriptor, parent_pipe, connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        if isinstance(self.task.program, Function):
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
                next_check = checked + pause
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
                if not self._read_output(descriptor):
                    poll.unregister(descriptor)
            elif descriptor == self.pipes.value[0] and not _read_into(self.value, descriptor):
                poll.unregister(descriptor)
        bound = self.task.limits.output_bytes
        if max(self.num_received.values()) > _FLOOD * max(bound, _CHUNK) or len(self.value) > self._max_value_bytes():
            self.limit = "output"
        return self.limit is not None

    def _max_value_bytes(self) -> int:
        return max(self.task.limits.file_bytes, self.task.limits.output_bytes) + 8

    def _write_stdin(self) -> bool:
        """Write a chunk of stdin; return True if there is more."""
        try:
            self.stdin = self.stdin[os.write(self.pipes.stdin[1], self.stdin[:_CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self.stdin)

    def _read_output(self, descriptor: int) -> bool:
        """Read a chunk of output and keep what fits; return True if there may be more."""
        chunk = _read(descriptor)
        if chunk:
            kept = self.output[descriptor]
            room = self.task.limits.output_bytes - len(kept)
            self.num_received[descriptor] += len(chunk)
            self.truncated = self.truncated or len(chunk) > room
            kept += chunk[:room]
        return chunk != b""

    def _find_exceeded_limit(self) -> Limit | None:
        """Return the first limit that the program and its descendants exceed together."""
        limits = self.task.limits
        pids = self._descendants()
        usage = processes.measure_usage(pids)
        base = self.settings.base_resident_bytes
        if usage.processes > limits.processes:
            return "processes"
        if usage.cpu_seconds - self.earlier_cpu_seconds >= limits.cpu_seconds + 1:
            return "cpu"
        if usage.memory_bytes - base > limits.memory_bytes:
            proportional = processes.measure_proportional_memory(pids)
            if (proportional or usage.memory_bytes) - base > limits.memory_bytes:
                return "memory"
        try:
            disk_bytes = workspaces.measure_disk_usage(self.workspace.folder)
            if disk_bytes + processes.measure_deleted_files(pids) > limits.file_bytes:
                return "files"
        except workspaces.TooLargeError:
            return "files"
        return None

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
        for descriptor in self.output:
            while _is_readable(descriptor) and self._read_output(descriptor):
                pass
        for descriptor, kept in ((self.pipes.status[0], self.status), (self.pipes.value[0], self.value)):
            while _is_readable(descriptor) and _read_into(kept, descriptor):
                pass

    def pack_report(self) -> bytes:
        """Encode the result; how the task ended is known from the kernel and the clock only."""
        if bytes(self.status) != READY and self.limit is None:
            return wire.pack_failure(
                self.status.decode(errors="replace") or "the process ended before the program began"
            )
        exit_code = self._exit_code()
        files = None
        if self.task.keep_files:
            files = workspaces.collect(self.workspace.home, self.task.limits.file_bytes)
        limit = self.limit or self._limit_by_signal(exit_code)
        return wire.pack_result(
            SandboxResult(
                exit_code=exit_code if limit is None and exit_code is not None and exit_code >= 0 else None,
                stdout=bytes(self.output[self.pipes.stdout[0]]),
                stderr=bytes(self.output[self.pipes.stderr[0]]),
                truncated=self.truncated,
                limit=limit,
                value=self._returned_value() if exit_code == 0 else None,
                files=files,
                seconds=self.elapsed_seconds,
            )
        )

    def close(self, *descriptors: int) -> None:
        """Close these ends of the pipes, by default all open ones."""
        for descriptor in self.open_descriptors.intersection(descriptors or self.open_descriptors):
            self.open_descriptors.discard(descriptor)
            os.close(descriptor)

    def _has_returned(self) -> bool:
        """Return True if the task has ended although its process lives."""
        return False

    def _exit_code(self) -> int | None:
        return None if self.limit or self.wait_status is None else os.waitstatus_to_exitcode(self.wait_status)

    def _limit_by_signal(self, exit_code: int | None) -> Limit | None:
        """Return the rlimit behind a fatal signal, if the CPU time used confirms it."""
        cpu_seconds = _ended_children_cpu_seconds() - self._earlier_children_cpu_seconds - self.earlier_cpu_seconds
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_seconds >= self.task.limits.cpu_seconds / 2:
            return "cpu"
        return "files" if exit_code == -signal.SIGXFSZ else None

    def _returned_value(self) -> bytes | None:
        if len(self.value) < 8 or len(self.value) != 8 + struct.unpack("!Q", self.value[:8])[0]:
            return None
        return bytes(self.value[8:])


def _ended_children_cpu_seconds() -> float:
    """Return the CPU time of all ended descendants, including those of earlier tasks."""
    times = os.times()
    return times.children_user + times.children_system


def _read(descriptor: int) -> bytes | None:
    """Read a chunk; empty at the end, None if there is nothing to read yet."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _read_into(kept: bytearray, descriptor: int) -> bool:
    """Append a chunk; return True if there may be more."""
    chunk = _read(descriptor)
    kept += chunk or b""
    return chunk != b""


def _is_readable(descriptor: int) -> bool:
    """Return True if a read would not block; all possible writers have ended."""
    return bool(select.select([descriptor], [], [], 0)[0])
