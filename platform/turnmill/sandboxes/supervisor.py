"""The parent of one task: it starts it, watches it, ends it with all it left behind, and alone reports how it went."""

import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from turnmill.sandboxes import kernel, processes, wire, workspace
from turnmill.sandboxes.base import Command, Function, Limit, Outcome, Python, Task
from turnmill.sandboxes.confinement import Barriers, apply_limits, build_environment, confine
from turnmill.sandboxes.runner import VALUE_DESCRIPTOR, renew_interpreter, run_program

_ORDER, _STATUS = 4, 5
_READY = b"ready"
_CHUNK = 1 << 16
_FLOOD = 64
"""Output may be so many times its limit before the run is ended for it."""

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.01, 0.1
_SEND_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a zygote hands to the supervisors that it forks."""

    barriers: Barriers
    rules: list[tuple[int, int]]
    base_bytes: int
    """Address space that the interpreter takes before any task."""

    base_resident_bytes: int
    filter: bytes | None
    other_processes: int
    """What the same user may have besides a task; 0 makes the kernel's count exact."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """Both ends of each, from the program's point of view."""

    stdin: tuple[int, int] = field(default_factory=os.pipe)
    stdout: tuple[int, int] = field(default_factory=os.pipe)
    stderr: tuple[int, int] = field(default_factory=os.pipe)
    value: tuple[int, int] = field(default_factory=os.pipe)
    order: tuple[int, int] = field(default_factory=os.pipe)
    status: tuple[int, int] = field(default_factory=os.pipe)


def supervise(
    settings: Settings, control: socket.socket, alive: int, taken: int, name: bytes, folder: str, user: int | None
) -> NoReturn:
    """Wait for a task with everything ready for it, run it, and end."""
    try:
        kernel.adopt_orphans()
        if settings.barriers.scoped_signals and not settings.barriers.pid_namespace:
            # The task's own domain lies inside this one: it cannot reach us, and we reach nothing but it.
            kernel.landlock_restrict(settings.barriers.landlock_abi, None, tcp=False, scopes=kernel.SCOPE_SIGNALS)
        workspace.create(folder, user)
        pipes = Pipes()
        child = os.fork()
        if child == 0:
            _become_program(settings, pipes, folder, user)
        for ours in (pipes.stdin[0], pipes.stdout[1], pipes.stderr[1], pipes.value[1], pipes.order[0], pipes.status[1]):
            os.close(ours)
        _rehearse()
        connection = _wait_for_task(control, alive)
        if connection is not None:
            os.write(taken, name)
            _serve(settings, pipes, child, connection, alive, folder, user)
        processes.end_all(settings.barriers, user)
        workspace.remove(folder)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)


def _wait_for_task(control: socket.socket, alive: int) -> socket.socket | None:
    """The connection of the next task; None when the server or the zygote is gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(alive, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if ready.get(control.fileno(), 0) & select.POLLIN:
            try:
                data, descriptors, _, _ = socket.recv_fds(control, 16, 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue  # Another supervisor was quicker.
            if data and descriptors:
                return socket.socket(fileno=descriptors[0])
            return None
        if ready:
            return None


def _serve(
    settings: Settings,
    pipes: Pipes,
    child: int,
    connection: socket.socket,
    alive: int,
    folder: str,
    user: int | None,
) -> None:
    connection.settimeout(_SEND_SECONDS)
    message = wire.read(connection.recv)
    if message is None:
        return
    header, blobs = message
    task = wire.unpack_task(header, blobs)
    run = Run(settings, task, pipes, child, folder)
    try:
        run.start(wire.pack(header, [b"", *blobs[1:]]))
        run.watch(connection, alive)
        run.end(user)
        reply = run.reply()
    except Exception as error:
        processes.end_all(settings.barriers, user)
        reply = wire.pack_failure(f"{type(error).__name__}: {error}")
    workspace.remove(folder)
    if not run.cancelled:
        connection.sendall(reply)


class Run:
    """A task on its way."""

    def __init__(self, settings: Settings, task: Task, pipes: Pipes, child: int, folder: str) -> None:
        self.settings = settings
        self.task = task
        self.pipes = pipes
        self.child = child
        self.folder = folder
        self.state: int | None = None
        self.limit: Limit | None = None
        self.cancelled = False
        self.truncated = False
        self.status, self.value = bytearray(), bytearray()
        self.output = {pipes.stdout[0]: bytearray(), pipes.stderr[0]: bytearray()}
        self.received = dict.fromkeys(self.output, 0)
        self.stdin = memoryview(task.stdin)
        self.seconds = 0.0

    def start(self, order: bytes) -> None:
        """Hand over the task; the program's process reads all of it before anything untrusted runs."""
        self.started = time.monotonic()
        remaining = memoryview(order)
        with suppress(BrokenPipeError):  # It failed before; the status pipe says how.
            while remaining:
                remaining = remaining[os.write(self.pipes.order[1], remaining) :]
        os.close(self.pipes.order[1])
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
            os.close(self.pipes.stdin[1])
        pause, look = _FIRST_LOOK_SECONDS, self.started + _FIRST_LOOK_SECONDS
        deadline = self.started + self.task.limits.seconds
        while True:
            now = time.monotonic()
            ready = dict(poll.poll(max(0.0, min(look, deadline) - now) * 1000))
            if connection.fileno() in ready or alive in ready:
                self.cancelled = True
                break
            if self._move(ready, poll) or (ended.descriptor in ready and ended.happened()):
                break
            now = time.monotonic()
            if now >= deadline:
                self.limit = "time"
                break
            if now >= look:
                self.limit = self._exceeded()
                if self.limit:
                    break
                pause = min(2 * pause, _LAST_LOOK_SECONDS)
                look = time.monotonic() + pause
        self.seconds = time.monotonic() - self.started
        ended.close()

    def _move(self, ready: dict[int, int], poll: select.poll) -> bool:
        """Move what can be moved; says whether a limit on output is reached."""
        for descriptor in ready:
            if descriptor == self.pipes.stdin[1]:
                if not self._feed():
                    poll.unregister(descriptor)
                    os.close(descriptor)
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
        for pid, state in processes.reap().items():
            if pid == self.child:
                self.state = state
        pids = processes.descendants()
        used = processes.usage(pids)
        base = self.settings.base_resident_bytes
        if used.processes > limits.processes:
            return "processes"
        if used.cpu_seconds >= limits.cpu_seconds + 1:
            return "cpu"
        if used.memory_bytes - base > limits.memory_bytes:
            fair = processes.fair_memory_bytes(pids)
            if (fair or used.memory_bytes) - base > limits.memory_bytes:
                return "memory"
        try:
            if workspace.measure(self.folder) + processes.deleted_bytes(pids) > limits.file_bytes:
                return "files"
        except workspace.TooLargeError:
            return "files"
        return None

    def end(self, user: int | None) -> None:
        """Kill what is left, then read what it wrote before."""
        if self.limit is None and not self.cancelled and self.state is None:
            self.state = os.waitpid(self.child, 0)[1]
        ended = processes.end_all(self.settings.barriers, user)
        self.state = ended.get(self.child, self.state)
        for descriptor in self.output:
            while _has_more(descriptor) and self._take_output(descriptor):
                pass
        for descriptor, kept in ((self.pipes.status[0], self.status), (self.pipes.value[0], self.value)):
            while _has_more(descriptor) and self._take(descriptor, kept):
                pass

    def reply(self) -> bytes:
        """The outcome; everything about how it ended comes from the kernel and the clock."""
        if bytes(self.status) != _READY and self.limit is None:
            return wire.pack_failure(
                self.status.decode(errors="replace") or "the process ended before the program began"
            )
        exit_code = None if self.limit or self.state is None else os.waitstatus_to_exitcode(self.state)
        files = None
        if self.task.keep_files:
            files = workspace.collect(f"{self.folder}/{workspace.HOME}", self.task.limits.file_bytes)
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

    def _limit_by_signal(self, exit_code: int | None) -> Limit | None:
        """The rlimit behind a deadly signal, where the time used bears it out."""
        used = os.times()
        cpu_seconds = used.children_user + used.children_system
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_seconds >= self.task.limits.cpu_seconds / 2:
            return "cpu"
        return "files" if exit_code == -signal.SIGXFSZ else None

    def _value(self) -> bytes | None:
        if len(self.value) < 8 or len(self.value) != 8 + struct.unpack("!Q", self.value[:8])[0]:
            return None
        return bytes(self.value[8:])


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None if there are none yet."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _has_more(descriptor: int) -> bool:
    """Whether a read would not wait; all who could write are gone."""
    return bool(select.select([descriptor], [], [], 0)[0])


def _become_program(settings: Settings, pipes: Pipes, folder: str, user: int | None) -> NoReturn:
    """The child: confined first, then told what to run. What goes wrong before that is told by the status pipe."""
    status = pipes.status[1]
    try:
        os.setsid()
        os.umask(0o022)
        confine(settings.barriers, settings.rules, settings.filter, folder, user)
        _take_descriptors(pipes)
        status = _STATUS
        home = f"{folder}/{workspace.HOME}"
        os.chdir(home)
        os.environ.clear()
        os.environ.update(build_environment(home, f"{folder}/{workspace.TEMPORARY}"))
        sys.path[:] = [home, *sys.path]
        _rehearse()
        renew_interpreter()
        message = wire.read(lambda size: os.read(_ORDER, size))
        if message is None:
            os._exit(0)
        task = wire.unpack_task(*message)
        _prepare(settings, task)
        os.write(_STATUS, _READY)
        os.close(_STATUS)
        os.close(_ORDER)
    except BaseException as error:
        os.write(status, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    run_program(task.program, VALUE_DESCRIPTOR)


def _take_descriptors(pipes: Pipes) -> None:
    """Six descriptors at fixed numbers, none else; a program that is started keeps the first three."""
    wanted = (pipes.stdin[0], pipes.stdout[1], pipes.stderr[1], pipes.value[1], pipes.order[0], pipes.status[1])
    base = max(wanted) + len(wanted)
    for number, descriptor in enumerate(wanted):
        os.dup2(descriptor, base + number)
    for number in range(len(wanted)):
        os.dup2(base + number, number, inheritable=number < VALUE_DESCRIPTOR)
    os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))


def _rehearse() -> None:
    """What every task does, once without one: the memory it writes to is copied now instead of then."""
    message = wire.pack_task(Task(Python("pass")))
    head, body = message[: wire.HEAD_BYTES], message[wire.HEAD_BYTES :]
    task = wire.unpack_task(*wire.unpack(head, body))
    exec(compile(task.program.source, "rehearsal", "exec"), {})  # type: ignore[union-attr]
    wire.pack_outcome(Outcome(exit_code=0))
    select.poll().poll(0)
    resource.getrlimit(resource.RLIMIT_AS)


def _prepare(settings: Settings, task: Task) -> None:
    """Files, folder, environment and limits, all from behind the barriers."""
    for path, content in task.files.items():
        if parent := os.path.dirname(path):
            os.makedirs(parent, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    if task.folder != ".":
        os.makedirs(task.folder, exist_ok=True)
        os.chdir(task.folder)
    if task.merge_output:
        os.dup2(1, 2)
        sys.path[0] = os.getcwd()
    os.environ.update(task.environment)
    if not isinstance(task.program, Function):
        os.close(VALUE_DESCRIPTOR)
    apply_limits(
        task.limits,
        base_bytes=0 if isinstance(task.program, Command) else settings.base_bytes,
        other_processes=settings.other_processes,
    )
