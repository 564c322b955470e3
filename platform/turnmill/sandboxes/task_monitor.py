"""One run of a task: moves its bytes, watches its limits, ends its processes and tells how it went."""

import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field

from turnmill.sandboxes import processes, wire, workspace
from turnmill.sandboxes.base import Function, Limit, Outcome, Task
from turnmill.sandboxes.confinement import Barriers, Rules

ALONE, ATTENDED = b"c", b"a"
"""What comes to the zygote with a connection: whether one process serves all its tasks."""

MAX_COPIES = 16
"""Files of the server's that one task gets."""

READY = b"ready"
"""What a task's process says when nothing can go wrong any more but the program."""

_CHUNK = 1 << 16
_FLOOD = 64
"""Output may be so many times its limit before the run is ended for it."""

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.01, 0.1
_PAUSE_PER_LOOK = 20
"""A pause is at least so many times as long as the look before it: on a busy machine looks take time from tasks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a zygote hands to the supervisors that it forks."""

    barriers: Barriers
    own_rules: Rules
    task_rules: Rules
    base_bytes: int
    """Address space that the interpreter takes before any task."""

    base_resident_bytes: int
    filter: bytes | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tasks of a supervisor run, one after the other, and as which user."""

    folder: str
    user: int | None

    @property
    def home(self) -> str:
        """The folder in which a task starts."""
        return f"{self.folder}/{workspace.HOME}"


@dataclass(frozen=True, slots=True)
class Pipes:
    """Both ends of each, from the program's point of view."""

    stdin: tuple[int, int] = field(default_factory=os.pipe)
    stdout: tuple[int, int] = field(default_factory=os.pipe)
    stderr: tuple[int, int] = field(default_factory=os.pipe)
    value: tuple[int, int] = field(default_factory=os.pipe)
    order: tuple[int, int] = field(default_factory=os.pipe)
    status: tuple[int, int] = field(default_factory=os.pipe)

    @property
    def theirs(self) -> tuple[int, ...]:
        """The program's ends, in the order of the numbers that they get there."""
        return self.stdin[0], self.stdout[1], self.stderr[1], self.value[1], self.order[0], self.status[1]

    @property
    def ours(self) -> tuple[int, ...]:
        """The supervisor's ends."""
        return self.stdin[1], self.stdout[0], self.stderr[0], self.value[0], self.order[1], self.status[0]


class Run:
    """A task on its way."""

    def __init__(self, settings: Settings, task: Task, pipes: Pipes, child: int, place: Place) -> None:
        self.settings = settings
        self.task = task
        self.pipes = pipes
        self.child = child
        self.place = place
        self.open = set(pipes.ours)
        self.state: int | None = None
        self.limit: Limit | None = None
        self.cancelled = False
        self.truncated = False
        self.status, self.value = bytearray(), bytearray()
        self.output = {pipes.stdout[0]: bytearray(), pipes.stderr[0]: bytearray()}
        self.received = dict.fromkeys(self.output, 0)
        self.stdin = memoryview(task.stdin)
        self.seconds = 0.0
        self.cpu_seconds_before = 0.0
        """What its process used for tasks before this one."""

        self._ended_seconds_before = _ended_cpu_seconds()

    def start(self, order: bytes) -> None:
        """Hand over the task; the program's process reads all of it before anything untrusted runs."""
        self.started = time.monotonic()
        remaining = memoryview(order)
        with suppress(BrokenPipeError):  # It failed before; the status pipe says how.
            while remaining:
                remaining = remaining[os.write(self.pipes.order[1], remaining) :]
        self.close(self.pipes.order[1])
        for descriptor in (*self.output, self.pipes.stdin[1], self.pipes.status[0], self.pipes.value[0]):
            os.set_blocking(descriptor, False)

    def watch(self, connection: socket.socket, alive: int) -> None:
        """Move bytes until the program ends, reaches a limit, or server or zygote are gone."""
        ended = processes.End(self.child)
        poll = select.poll()
        for descriptor in (*self.output, ended.descriptor, alive, connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        if isinstance(self.task.program, Function):
            poll.register(self.pipes.value[0], select.POLLIN)
        if self.stdin:
            poll.register(self.pipes.stdin[1], select.POLLOUT)
        else:
            self.close(self.pipes.stdin[1])
        pause, look = _FIRST_LOOK_SECONDS, self.started + _FIRST_LOOK_SECONDS
        deadline = self.started + self.task.limits.seconds
        while True:
            now = time.monotonic()
            ready = dict(poll.poll(max(0.0, min(look, deadline) - now) * 1000))
            if connection.fileno() in ready or alive in ready:
                self.cancelled = True
                break
            if self._move(ready, poll) or self._is_answered() or (ended.descriptor in ready and ended.happened()):
                break
            now = time.monotonic()
            if now >= deadline:
                self.limit = "time"
                break
            if now >= look:
                self.limit = self._exceeded()
                if self.limit:
                    break
                looked = time.monotonic()
                pause = min(max(2 * pause, _PAUSE_PER_LOOK * (looked - now)), _LAST_LOOK_SECONDS)
                look = looked + pause
        self.seconds = time.monotonic() - self.started
        ended.close()

    def _move(self, ready: dict[int, int], poll: select.poll) -> bool:
        """Move what can be moved; says whether a limit on output is reached."""
        for descriptor in ready:
            if descriptor == self.pipes.stdin[1]:
                if not self._feed():
                    poll.unregister(descriptor)
                    self.close(descriptor)
            elif descriptor in self.output:
                if not self._take_output(descriptor):
                    poll.unregister(descriptor)
            elif descriptor == self.pipes.value[0] and not self._take(descriptor, self.value):
                poll.unregister(descriptor)
        bound = self.task.limits.output_bytes
        if max(self.received.values()) > _FLOOD * max(bound, _CHUNK) or len(self.value) > self._max_value_bytes():
            self.limit = "output"
        return self.limit is not None

    def _max_value_bytes(self) -> int:
        return max(self.task.limits.file_bytes, self.task.limits.output_bytes) + 8

    def _feed(self) -> bool:
        """Whether there is more for stdin."""
        try:
            self.stdin = self.stdin[os.write(self.pipes.stdin[1], self.stdin[:_CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self.stdin)

    def _take_output(self, descriptor: int) -> bool:
        """Whether there may be more."""
        chunk = _read(descriptor)
        if chunk:
            kept = self.output[descriptor]
            room = self.task.limits.output_bytes - len(kept)
            self.received[descriptor] += len(chunk)
            self.truncated = self.truncated or len(chunk) > room
            kept += chunk[:room]
        return chunk != b""

    def _take(self, descriptor: int, kept: bytearray) -> bool:
        chunk = _read(descriptor)
        kept += chunk or b""
        return chunk != b""

    def _exceeded(self) -> Limit | None:
        """The first limit that the program and its descendants exceed together."""
        limits = self.task.limits
        pids = self._descendants()
        used = processes.usage(pids)
        base = self.settings.base_resident_bytes
        if used.processes > limits.processes:
            return "processes"
        if used.cpu_seconds - self.cpu_seconds_before >= limits.cpu_seconds + 1:
            return "cpu"
        if used.memory_bytes - base > limits.memory_bytes:
            fair = processes.fair_memory_bytes(pids)
            if (fair or used.memory_bytes) - base > limits.memory_bytes:
                return "memory"
        try:
            if workspace.measure(self.place.folder) + processes.deleted_bytes(pids) > limits.file_bytes:
                return "files"
        except workspace.TooLargeError:
            return "files"
        return None

    def _descendants(self) -> list[int]:
        """Those alive, the program's process among them."""
        for pid, state in processes.reap().items():
            if pid == self.child:
                self.state = state
        return processes.descendants()

    def end(self) -> None:
        """Kill what is left, then read what it wrote before."""
        if self.limit is None and not self.cancelled:
            if self.state is None:
                self.state = os.waitpid(self.child, 0)[1]
            # A program may start too many and end before the next look.
            if len(self._descendants()) > self.task.limits.processes:
                self.limit = "processes"
        ended = processes.end_all(self.settings.barriers, self.place.user)
        self.state = ended.get(self.child, self.state)
        self._drain()

    def _drain(self) -> None:
        for descriptor in self.output:
            while _has_more(descriptor) and self._take_output(descriptor):
                pass
        for descriptor, kept in ((self.pipes.status[0], self.status), (self.pipes.value[0], self.value)):
            while _has_more(descriptor) and self._take(descriptor, kept):
                pass

    def reply(self) -> bytes:
        """The outcome; everything about how it ended comes from the kernel and the clock."""
        if bytes(self.status) != READY and self.limit is None:
            return wire.pack_failure(
                self.status.decode(errors="replace") or "the process ended before the program began"
            )
        exit_code = self._exit_code()
        files = None
        if self.task.keep_files:
            files = workspace.collect(self.place.home, self.task.limits.file_bytes)
        limit = self.limit or self._limit_by_signal(exit_code)
        return wire.pack_outcome(
            Outcome(
                exit_code=exit_code if limit is None and exit_code is not None and exit_code >= 0 else None,
                stdout=bytes(self.output[self.pipes.stdout[0]]),
                stderr=bytes(self.output[self.pipes.stderr[0]]),
                truncated=self.truncated,
                limit=limit,
                value=self._value() if exit_code == 0 else None,
                files=files,
                seconds=self.seconds,
            )
        )

    def close(self, *descriptors: int) -> None:
        """Close these ends, or all that are open."""
        for descriptor in self.open.intersection(descriptors or self.open):
            self.open.discard(descriptor)
            os.close(descriptor)

    def _is_answered(self) -> bool:
        """Whether it is over although its process lives."""
        return False

    def _exit_code(self) -> int | None:
        return None if self.limit or self.state is None else os.waitstatus_to_exitcode(self.state)

    def _limit_by_signal(self, exit_code: int | None) -> Limit | None:
        """The rlimit behind a deadly signal, where the time used bears it out."""
        cpu_seconds = _ended_cpu_seconds() - self._ended_seconds_before - self.cpu_seconds_before
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_seconds >= self.task.limits.cpu_seconds / 2:
            return "cpu"
        return "files" if exit_code == -signal.SIGXFSZ else None

    def _value(self) -> bytes | None:
        if len(self.value) < 8 or len(self.value) != 8 + struct.unpack("!Q", self.value[:8])[0]:
            return None
        return bytes(self.value[8:])


def _ended_cpu_seconds() -> float:
    """What all that have ended used, those of earlier tasks among them."""
    used = os.times()
    return used.children_user + used.children_system


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None if there are none yet."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _has_more(descriptor: int) -> bool:
    """Whether a read would not wait; all who could write are gone."""
    return bool(select.select([descriptor], [], [], 0)[0])


def wait_for_message(connection: socket.socket, alive: int, opened: list[int]) -> tuple[bytes, bytes] | None:
    """The next message, and the files that come with it; None when the server or the zygote is gone."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(alive, select.POLLIN)
    return None if alive in dict(poll.poll()) else wire.receive(lambda size: _receive(connection, size, opened))


def _receive(connection: socket.socket, size: int, opened: list[int]) -> bytes:
    """Some bytes of a message, and the files that come with them."""
    data, descriptors, _, _ = socket.recv_fds(connection, size, MAX_COPIES)
    opened += descriptors
    return data
