"""The warm process from which every task is forked: `python -m turnmill.sandboxes.zygote SETTINGS`, a client starts it.

It imports what user code commonly imports, enters what namespaces it may, and forks a supervisor for each connection
that the server hands it.
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
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any, NoReturn

from turnmill.sandboxes import kernel, processes, workspace
from turnmill.sandboxes.confinement import (
    FIRST_USER,
    NUM_USERS,
    Barriers,
    enter_namespaces,
    namespace_for_child,
    open_rules,
    prepare_filter,
    users_work,
)
from turnmill.sandboxes.interpreter import renew_interpreter
from turnmill.sandboxes.supervisor import supervise
from turnmill.sandboxes.task_monitor import ATTENDED, Place, Settings

COMMON = (
    "array", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "inspect", "io", "itertools", "json", "math", "numbers",
    "operator", "os", "queue", "random", "re", "statistics", "string", "struct", "sys", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata",
)  # fmt: skip
"""Of the standard library, imported before any task: what programs often use and what weighs little."""

_END_SECONDS = 10.0
_FORK_SECONDS = 10.0
_HUGE = 2 * 1024**2


class Zygote:
    """Its state: the supervisors it has forked, with their folders and what keeps their users for them."""

    def __init__(self, control: socket.socket, options: dict[str, Any]) -> None:
        self.control = control
        self.folder: str = options["folder"]
        self.packages: list[str] = options["packages"]
        self.supervisors: dict[int, tuple[str, socket.socket | None]] = {}
        self.last_user = FIRST_USER + random.randrange(NUM_USERS)
        self.alive_end, self.alive = os.pipe()
        self.woken, self.waking = os.pipe()
        self.barriers = self._find_barriers(options)
        tasks = f"{self.folder}/{workspace.TASKS}"
        shared, wide = open_rules(self.packages, tasks) if self.barriers.confined else ([], [])
        self.settings = Settings(self.barriers, shared, wide, *_own_size(), prepare_filter(self.barriers))

    def _find_barriers(self, options: dict[str, Any]) -> Barriers:
        network = options["network"]
        if not options["confined"]:
            return Barriers(confined=False, network=network)
        abi = kernel.landlock_abi()
        pid, net, root = False, False, False
        if options["namespaces"]:
            pid, net, root = enter_namespaces(self.folder, self.packages, network=network)
        if abi == 0 and not (pid and root):
            raise RuntimeError("Landlock is missing: it takes Linux 5.13 with `landlock` among its security modules")
        return Barriers(
            network=network,
            landlock_abi=abi,
            pid_namespace=pid,
            network_namespace=net,
            own_root=root,
            own_mounts=abi == 0,
            own_user=users_work(),
        )

    def serve(self) -> None:
        """Fork a supervisor for every connection that comes, until the server lets go of its end."""
        for descriptor in (self.woken, self.waking):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waking, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self.woken in ready:
                _drain(self.woken)
                self._reap()
            if self.control.fileno() in ready:
                data, descriptors, _, _ = socket.recv_fds(self.control, 16, 1)
                if not data:
                    return
                for connection in descriptors:
                    self._fork_patiently(connection, attended=data == ATTENDED)
                    os.close(connection)

    def _fork_patiently(self, connection: int, *, attended: bool) -> None:
        """A machine that has no room for another process may have it in a moment; else the server sees its end."""
        deadline = time.monotonic() + _FORK_SECONDS
        while time.monotonic() < deadline:
            try:
                self._fork(connection, attended=attended)
                return
            except OSError as error:
                print(f"turnmill sandbox: {error}", file=sys.stderr)
                time.sleep(0.05)
                self._reap()

    def _fork(self, connection: int, *, attended: bool) -> None:
        folder = workspace.choose(f"{self.folder}/{workspace.TASKS}")
        user, kept = None, None
        if self.barriers.own_user:
            user, kept = reserve_user(self.last_user)
            self.last_user = user
        with namespace_for_child() if self.barriers.pid_namespace else nullcontext():
            child = os.fork()
            if child == 0:
                self._become_supervisor(connection, folder, user, attended=attended)
        self.supervisors[child] = (folder, kept)

    def _become_supervisor(self, connection: int, folder: str, user: int | None, *, attended: bool) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self.alive, self.woken, self.waking):
            os.close(descriptor)
        self.control.close()
        for _, kept in self.supervisors.values():
            if kept is not None:
                kept.close()
        place = Place(folder, user)
        supervise(self.settings, socket.socket(fileno=connection), self.alive_end, place, attended=attended)

    def _reap(self) -> None:
        for pid, state in processes.reap().items():
            folder, kept = self.supervisors.pop(pid, ("", None))
            # What a killed supervisor had started comes to us, one generation after the other as each ends.
            if (state != 0 or not folder) and not self.barriers.pid_namespace:
                self._end_orphans()
            if state != 0 and folder:
                with suppress(OSError):
                    workspace.remove(folder)
            if kept is not None:
                kept.close()

    def _end_orphans(self) -> None:
        for pid in set(processes.children()) - set(self.supervisors):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the supervisors, who have seen the server go, and leave nothing."""
        os.close(self.alive)
        deadline = time.monotonic() + _END_SECONDS
        while self.supervisors and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        for pid in self.supervisors:
            os.kill(pid, signal.SIGKILL)


def reserve_user(last: int) -> tuple[int, socket.socket]:
    """A user after `last` who is nobody else's on this machine while the socket is open: a task's end may kill all that
    its user runs, and other zygotes choose from the same numbers."""
    for step in range(1, NUM_USERS + 1):
        user = FIRST_USER + (last - FIRST_USER + step) % NUM_USERS
        kept = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # An abstract name: whatever ends its holders frees it.
            kept.bind(f"\0turnmill-user-{user}")
        except OSError as error:
            kept.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return user, kept
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
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if rights == "rw-p" and end > start and (name == "0" or name == "[heap]"):
            kernel.collapse(start, end - start)


def _own_size() -> tuple[int, int]:
    """Address space and resident memory, in bytes."""
    with open("/proc/self/statm") as file:
        size, resident = map(int, file.read().split()[:2])
    page = resource.getpagesize()
    return size * page, resident * page


def _import(names: list[str], *, must: bool) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            if must:
                raise


def _keep(child: int, folder: str) -> NoReturn:
    """Delete the folder when the zygote has ended, however it did; from where it lives it may not see it."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    state = os.waitpid(child, 0)[1]
    workspace.remove_root(folder)
    os._exit(os.waitstatus_to_exitcode(state) & 0xFF)


def main() -> None:
    options = json.loads(sys.argv[1])
    keeper = os.getpid()
    child = os.fork()
    if child:
        _keep(child, options["folder"])
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:
        return
    control = socket.socket(fileno=int(options["control"]))
    try:
        sys.path[:] = options["path"]
        _import(list(COMMON), must=True)
        _import(options["warm"], must=False)
        _import(["turnmill.sandboxes.self_test", *options["preload"]], must=True)
        if threading.active_count() > 1:
            raise RuntimeError(f"preloaded modules start threads, and a fork copies none: {threading.enumerate()}")
        kernel.adopt_orphans()
        zygote = Zygote(control, options)
    except Exception as error:
        control.send(json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
        raise
    os.chdir("/")
    os.umask(0o022)
    sys.stdout.flush()
    sys.stderr.flush()
    kernel.flush_c_streams()
    renew_interpreter()
    gc.disable()
    gc.freeze()
    _collapse_memory()
    control.send(json.dumps(asdict(zygote.barriers)).encode())
    try:
        zygote.serve()
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
