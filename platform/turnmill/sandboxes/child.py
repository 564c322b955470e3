"""A task's process: forked and confined before there is a task, then told what to run."""

import os
import signal
import sys
from contextlib import nullcontext
from typing import NoReturn

from turnmill.sandboxes import kernel, processes, wire
from turnmill.sandboxes.base import Command, Function, Task
from turnmill.sandboxes.confinement import apply_limits, build_ruleset, confine, namespace_for_child
from turnmill.sandboxes.interpreter import VALUE_DESCRIPTOR, answer, begin_anew, end_with, run_program
from turnmill.sandboxes.task_monitor import READY, Pipes, Place, Settings

_ORDER, _STATUS = 4, 5


def fork_program(settings: Settings, place: Place, pipes: Pipes, *, attends: bool = False) -> int:
    """A process that waits for its task; an attendant is the first of a pid namespace."""
    ruleset = None
    if settings.barriers.has_landlock:
        ruleset = build_ruleset(settings.barriers, settings.task_rules, place.folder)
    with namespace_for_child() if attends else nullcontext():
        child = kernel.fork()
        if child == 0:
            _become_program(settings, place, pipes, ruleset, attends=attends)
    if ruleset is not None:
        os.close(ruleset)
    return child


def _become_program(settings: Settings, place: Place, pipes: Pipes, ruleset: int | None, *, attends: bool) -> NoReturn:
    """The child: confined first, then told what to run. What goes wrong before that is told by the status pipe.

    Every object that is touched here costs a page, as it counts its references: what can be done once is done before.
    """
    status = pipes.status[1]
    try:
        os.setsid()
        confine(settings.barriers, ruleset, settings.filter, place.folder, place.user)
        _take_descriptors(pipes)
        status = _STATUS
        begin_anew()
        if attends:
            end_with(lambda: _attend(settings, place))
        os.chdir(place.home)
        sys.path.insert(0, place.home)
        message = wire.receive(lambda size: os.read(_ORDER, size))
        if message is None:
            os._exit(0)
        task = wire.unpack_task(*wire.unpack(*message))
        _prepare(settings, task)
        os.write(_STATUS, READY)
        os.close(_STATUS)
        os.close(_ORDER)
    except BaseException as error:
        os.write(status, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    run_program(task.program, VALUE_DESCRIPTOR)


def _attend(settings: Settings, place: Place) -> NoReturn:
    """Task after task: what one has started is ended before its value is told. Nothing is imported from where a task
    may write, and no handler of a signal is left, as the kernel would deliver to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    is_limited = False
    while (message := wire.receive(lambda size: os.read(_ORDER, size))) is not None:
        task = wire.unpack_task(*wire.unpack(*message))
        if not is_limited:
            # Its own time grows from task to task; the programs that it starts get a limit each.
            apply_limits(
                task.limits,
                base_bytes=settings.base_bytes,
                own_user=settings.barriers.own_user,
                cpu=False,
            )
            is_limited = True
        os.chdir(place.home)
        os.write(_STATUS, READY)
        assert isinstance(task.program, Function)
        answer(task.program, VALUE_DESCRIPTOR, after=_end_of_attended)
    os._exit(0)


def _end_of_attended() -> None:
    processes.end_others()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _take_descriptors(pipes: Pipes) -> None:
    """Six descriptors at fixed numbers, none else; a program that is started keeps the first three."""
    wanted = pipes.theirs
    base = max(wanted) + len(wanted)
    for number, descriptor in enumerate(wanted):
        os.dup2(descriptor, base + number)
    for number in range(len(wanted)):
        os.dup2(base + number, number, inheritable=number < VALUE_DESCRIPTOR)
    os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))


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
        own_user=settings.barriers.own_user,
    )
