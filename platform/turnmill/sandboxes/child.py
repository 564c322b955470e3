"""Process of a task: forked and confined in advance, then told what to run."""

import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

from turnmill.core import forking
from turnmill.sandboxes import kernel, processes, wire
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import Command, Function, SandboxTask
from turnmill.sandboxes.confinement import apply_limits, confine
from turnmill.sandboxes.cpu_time import group_of, join_group
from turnmill.sandboxes.interpreter import VALUE_DESCRIPTOR, call_function, reset_after_fork, run_and_exit, run_program
from turnmill.sandboxes.landlock_rules import Rules, build_ruleset
from turnmill.sandboxes.namespaces import namespace_for_child
from turnmill.sandboxes.workspaces import Workspace

READY = b"ready"
"""Written to the status pipe when all preparation is done, and only the program itself can still fail."""

_REQUEST, _STATUS = 4, 5
"""Descriptors in the child."""


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Settings that a fork server passes to its supervisors."""

    barriers: Barriers
    supervisor_rules: Rules
    task_rules: Rules
    base_bytes: int
    """Address space of the interpreter before any task, in bytes."""

    base_resident_bytes: int
    syscall_filter: bytes | None
    """None if each task needs a filter of its own."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """Pipes between a supervisor and a child, each with its reading end first."""

    stdin: tuple[int, int] = field(default_factory=os.pipe)
    stdout: tuple[int, int] = field(default_factory=os.pipe)
    stderr: tuple[int, int] = field(default_factory=os.pipe)
    value: tuple[int, int] = field(default_factory=os.pipe)
    request: tuple[int, int] = field(default_factory=os.pipe)
    status: tuple[int, int] = field(default_factory=os.pipe)

    @property
    def child_ends(self) -> tuple[int, ...]:
        """The child's ends, in the order of their descriptors in the child."""
        return self.stdin[0], self.stdout[1], self.stderr[1], self.value[1], self.request[0], self.status[1]

    @property
    def supervisor_ends(self) -> tuple[int, ...]:
        """The supervisor's ends."""
        return self.stdin[1], self.stdout[0], self.stderr[0], self.value[0], self.request[1], self.status[0]


def fork_child(settings: SupervisorSettings, workspace: Workspace, pipes: Pipes, *, persistent: bool = False) -> int:
    """Fork a confined process that waits for its task, and return its pid; close the child's ends of the pipes.

    A persistent worker waits for many tasks, and is the first process of a pid namespace.
    """
    ruleset = None
    if settings.barriers.has_landlock:
        ruleset = build_ruleset(settings.barriers, settings.task_rules, workspace.folder)
    with namespace_for_child() if persistent else nullcontext():
        child = kernel.fork()
        if child == 0:
            _run_child(settings, workspace, pipes, ruleset, persistent=persistent)
    if ruleset is not None:
        os.close(ruleset)
    for descriptor in pipes.child_ends:
        os.close(descriptor)
    return child


def _run_child(
    settings: SupervisorSettings, workspace: Workspace, pipes: Pipes, ruleset: int | None, *, persistent: bool
) -> NoReturn:
    """Confine this process, then wait for the task. Errors before the program starts go to the status pipe.

    The first access to an object copies a page, because its reference count changes; so as much as possible is done
    before the fork.
    """
    status = pipes.status[1]
    try:
        os.setsid()
        if settings.barriers.own_cgroup:
            join_group(group_of(workspace.folder))
        confine(settings.barriers, ruleset, settings.syscall_filter, workspace.folder, workspace.user)
        _take_descriptors(pipes)
        status = _STATUS
        reset_after_fork()
        if persistent:
            run_and_exit(lambda: _serve_tasks(settings, workspace))
        os.chdir(workspace.home)
        sys.path.insert(0, workspace.home)
        message = wire.receive(lambda size: os.read(_REQUEST, size))
        if message is None:
            os._exit(0)
        task = wire.unpack_task(*wire.unpack(*message))
        _prepare(settings, task)
        os.write(_STATUS, READY)
        os.close(_STATUS)
        os.close(_REQUEST)
    except BaseException as error:
        os.write(status, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    run_program(task.program, VALUE_DESCRIPTOR)


def _serve_tasks(settings: SupervisorSettings, workspace: Workspace) -> NoReturn:
    """Run task after task; end the processes of each before returning its value.

    Nothing is imported from a folder that tasks may write to, and no signal handler is installed, as the kernel would
    deliver handled signals.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    is_limited = False
    while (message := wire.receive(lambda size: os.read(_REQUEST, size))) is not None:
        task = wire.unpack_task(*wire.unpack(*message))
        if not is_limited:
            # The worker's own CPU time grows from task to task; the programs that it starts get a limit each.
            apply_limits(
                task.limits,
                base_bytes=settings.base_bytes,
                own_user=settings.barriers.own_user,
                cpu=False,
            )
            is_limited = True
        os.chdir(workspace.home)
        os.write(_STATUS, READY)
        assert isinstance(task.program, Function)
        call_function(task.program, VALUE_DESCRIPTOR, before_return=_end_task)
    os._exit(0)


def _end_task() -> None:
    processes.kill_others()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _take_descriptors(pipes: Pipes) -> None:
    """Move the child's ends to fixed numbers and close all others; programs that it starts inherit the first three."""
    ends = pipes.child_ends
    base = max(ends) + len(ends)
    for number, descriptor in enumerate(ends):
        os.dup2(descriptor, base + number)
    for number in range(len(ends)):
        os.dup2(base + number, number, inheritable=number < VALUE_DESCRIPTOR)
    forking.close_descriptors(len(ends))


def _prepare(settings: SupervisorSettings, task: SandboxTask) -> None:
    """Set up files, working directory, environment and limits, after confinement."""
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
