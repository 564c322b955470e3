"""Process from which all tasks are forked: `python -m turnmill.sandboxes.fork_server OPTIONS`, started by a client.

It imports the modules that user code commonly imports, enters the namespaces that the machine allows, and forks a
supervisor for each connection that the server passes to it.
"""

import errno
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import NoReturn

from turnmill.core import forking
from turnmill.sandboxes import kernel, processes, wire, workspaces
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.child import SupervisorSettings
from turnmill.sandboxes.confinement import FIRST_USER, NUM_USERS, can_change_user, prepare_filter
from turnmill.sandboxes.cpu_time import group_of
from turnmill.sandboxes.interpreter import reset_interpreter
from turnmill.sandboxes.landlock_rules import Rules, open_rules
from turnmill.sandboxes.namespaces import Namespaces, enter_namespaces, namespace_for_child
from turnmill.sandboxes.supervisor import supervise
from turnmill.sandboxes.workspaces import Workspace

COMMON = (
    "array", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "inspect", "io", "itertools", "json", "math", "numbers",
    "operator", "os", "queue", "random", "re", "statistics", "string", "struct", "sys", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata",
)  # fmt: skip
"""Modules of the standard library to import before any task: often used and light."""

_END_SECONDS = 10.0
_FORK_SECONDS = 10.0
_HUGE_PAGE_BYTES = 2 * 1024**2


class ForkServer:
    """Forks supervisors, and keeps their folders and the sockets that reserve their users."""

    def __init__(self, control: socket.socket, options: wire.ForkServerOptions) -> None:
        self.control = control
        self.folder = options.folder
        self.packages = list(options.packages)
        self.supervisors: dict[int, tuple[str, socket.socket | None]] = {}
        self.last_user = FIRST_USER + random.randrange(NUM_USERS)
        # The reading end goes to the supervisors, who see there that this process has ended.
        self.parent_pipe, self.parent_pipe_writer = os.pipe()
        self.wakeup_reader, self.wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.barriers = self._find_barriers(options)
        tasks = f"{self.folder}/{workspaces.TASKS}"
        supervisor_rules: Rules = []
        task_rules: Rules = []
        if self.barriers.confined:
            supervisor_rules, task_rules = open_rules(self.packages, tasks, own_root=self.barriers.own_root)
        size, resident = _measure_own_memory()
        self.settings = SupervisorSettings(
            self.barriers, supervisor_rules, task_rules, size, resident, prepare_filter(self.barriers)
        )

    def _find_barriers(self, options: wire.ForkServerOptions) -> Barriers:
        network = options.network
        if not options.confined:
            return Barriers(confined=False, network=network)
        abi = kernel.landlock_abi()
        entered = Namespaces()
        if options.namespaces:
            entered = enter_namespaces(self.folder, self.packages, network=network)
        if abi == 0 and not (entered.pid and entered.root):
            raise RuntimeError("Landlock is missing: it takes Linux 5.13 with `landlock` among its security modules")
        return Barriers(
            network=network,
            landlock_abi=abi,
            pid_namespace=entered.pid,
            network_namespace=entered.network,
            own_root=entered.root,
            own_mounts=abi == 0,
            own_cgroup=entered.cgroups,
            own_user=can_change_user(),
        )

    def serve(self) -> None:
        """Fork a supervisor for every connection, until the server closes the control socket."""
        forking.wake_on_child_exit(self.wakeup_writer)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wakeup_reader, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self.wakeup_reader in ready:
                _drain(self.wakeup_reader)
                self._reap()
            if self.control.fileno() in ready:
                data, descriptors, _, _ = socket.recv_fds(self.control, 16, 1)
                if not data:
                    return
                for connection in descriptors:
                    self._fork_with_retries(connection, persistent=data == wire.PERSISTENT_WORKER)
                    os.close(connection)

    def _fork_with_retries(self, connection: int, *, persistent: bool) -> None:
        """Fork, retrying while the machine cannot start another process; if that lasts, close the connection."""
        deadline = time.monotonic() + _FORK_SECONDS
        while time.monotonic() < deadline:
            try:
                self._fork(connection, persistent=persistent)
                return
            except OSError as error:
                print(f"turnmill sandbox: {error}", file=sys.stderr)
                time.sleep(0.05)
                self._reap()

    def _fork(self, connection: int, *, persistent: bool) -> None:
        folder = workspaces.choose_path(f"{self.folder}/{workspaces.TASKS}")
        user, reservation = None, None
        if self.barriers.own_user:
            user, reservation = reserve_user(self.last_user)
            self.last_user = user
        with namespace_for_child() if self.barriers.pid_namespace else nullcontext():
            child = os.fork()
            if child == 0:
                self._run_supervisor(connection, Workspace(folder, user), persistent=persistent)
        self.supervisors[child] = (folder, reservation)

    def _run_supervisor(self, connection: int, workspace: Workspace, *, persistent: bool) -> NoReturn:
        forking.ignore_child_exit()
        for descriptor in (self.parent_pipe_writer, self.wakeup_reader, self.wakeup_writer):
            os.close(descriptor)
        self.control.close()
        for _, reservation in self.supervisors.values():
            if reservation is not None:
                reservation.close()
        server = socket.socket(fileno=connection)
        supervise(self.settings, server, self.parent_pipe, workspace, persistent=persistent)

    def _reap(self) -> None:
        for pid, wait_status in processes.reap().items():
            folder, reservation = self.supervisors.pop(pid, ("", None))
            # Descendants of a killed supervisor become children of this process, one generation after the other.
            if (wait_status != 0 or not folder) and not self.barriers.pid_namespace:
                self._kill_orphans()
            if wait_status != 0 and folder:
                with suppress(OSError):
                    workspaces.remove(folder)
            if self.barriers.own_cgroup and folder:
                with suppress(OSError):
                    os.rmdir(group_of(folder))
            if reservation is not None:
                reservation.close()

    def _kill_orphans(self) -> None:
        for pid in set(processes.children()) - set(self.supervisors):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the supervisors, whose connections have closed, and kill those that remain."""
        os.close(self.parent_pipe_writer)
        deadline = time.monotonic() + _END_SECONDS
        while self.supervisors and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        for pid in self.supervisors:
            os.kill(pid, signal.SIGKILL)


def reserve_user(last: int) -> tuple[int, socket.socket]:
    """Return a user id after `last`, and the socket that reserves it on this machine while it is open.

    The end of a task may kill all processes of its user, and other fork servers choose from the same ids. Raises
    OSError (EAGAIN) if all ids are taken.
    """
    for step in range(1, NUM_USERS + 1):
        user = FIRST_USER + (last - FIRST_USER + step) % NUM_USERS
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # An abstract name is freed when its holders end, however they do.
            reservation.bind(f"\0turnmill-user-{user}")
        except OSError as error:
            reservation.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return user, reservation
    raise OSError(errno.EAGAIN, f"all {NUM_USERS} users of tasks are taken")


def _drain(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _collapse_memory() -> None:
    with open("/proc/self/maps") as maps:
        mappings = [line.split() for line in maps]
    for span, rights, *_, name in (mapping for mapping in mappings if len(mapping) == 5 or mapping[-1] == "[heap]"):
        start, end = (int(address, 16) for address in span.split("-"))
        start, end = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if rights == "rw-p" and end > start and (name == "0" or name == "[heap]"):
            kernel.collapse(start, end - start)


def _measure_own_memory() -> tuple[int, int]:
    """Return this process's address space and resident memory, in bytes."""
    with open("/proc/self/statm") as file:
        size, resident = map(int, file.read().split()[:2])
    page = resource.getpagesize()
    return size * page, resident * page


def _import(names: Iterable[str], *, required: bool) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            if required:
                raise


def _delete_folder_after(child: int, folder: str) -> NoReturn:
    """Delete the folder when the fork server has ended, in whatever way; in its own root it may not see the folder."""
    forking.close_descriptors(3)
    wait_status = os.waitpid(child, 0)[1]
    workspaces.remove_root(folder)
    os._exit(os.waitstatus_to_exitcode(wait_status) & 0xFF)


def main() -> None:
    """Serve until the client closes its end of the control socket."""
    options = wire.ForkServerOptions.from_json(sys.argv[1])
    keeper = os.getpid()
    child = os.fork()
    if child:
        _delete_folder_after(child, options.folder)
    forking.die_with_parent()
    if os.getppid() != keeper:
        return
    control = socket.socket(fileno=options.control)
    try:
        sys.path[:] = options.import_path
        _import(COMMON, required=True)
        _import(options.warm_packages, required=False)
        _import(["turnmill.sandboxes.self_test", *options.preload], required=True)
        if threading.active_count() > 1:
            raise RuntimeError(f"preloaded modules start threads, and a fork copies none: {threading.enumerate()}")
        forking.adopt_orphans()
        server = ForkServer(control, options)
    except Exception as error:
        control.send(json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
        raise
    os.chdir("/")
    os.umask(0o022)
    sys.stdout.flush()
    sys.stderr.flush()
    kernel.flush_c_streams()
    reset_interpreter()
    gc.disable()
    gc.freeze()
    _collapse_memory()
    control.send(json.dumps(asdict(server.barriers)).encode())
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main()
