"""Runs every attack, bare and in the sandbox, in a throw-away container: `attack_runner.py VARIANT`; prints JSON.

In a pod, which is a container already, `attack_runner.py --sandboxed` runs them in the sandbox only.
"""

import asyncio
import ctypes
import json
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from attack_programs import ATTACKS, BRIEF, NOBODY, POD, PREAMBLE, Attack, Result
from kernel_attacks import KERNEL_ATTACKS
from limit_attacks import LIMIT_ATTACKS

from support import container
from turnmill.sandboxes.base import Command, Limits, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox
from turnmill.sandboxes.syscall_numbers import number_of

ALL_ATTACKS = [*ATTACKS, *LIMIT_ATTACKS, *KERNEL_ATTACKS]
CALLS = (
    *("clone", "keyctl", "io_uring_setup", "userfaultfd", "close_range", "io_setup", "bpf", "perf_event_open"),
    *("add_key", "pidfd_getfd", "pidfd_send_signal", "kcmp", "ioprio_set", "seccomp", "name_to_handle_at", "mq_open"),
    *("fsopen", "clone3", "process_madvise", "ptrace", "tkill", "pivot_root"),
)
BARE_SECONDS = 60
HOLD_SECONDS = 3.0
NUM_SCANS = 100
SETUID_PROGRAM = "/usr/local/bin/id-of-root"
VICTIM = """
import ctypes, os, signal, sys, time
b = ctypes.create_string_buffer(os.environ["SECRET"].encode(), 64)
note = lambda *_: open(sys.argv[1], "w").close()
for number in (signal.SIGUSR1, signal.SIGWINCH): signal.signal(number, note)
print(ctypes.addressof(b), flush=True)
while True: time.sleep(1)
"""

USE_OF_A_DATABASE = """
import sqlite3
with sqlite3.connect("database") as database:
    database.execute("create table numbers (number)")
    database.executemany("insert into numbers values (?)", [(number,) for number in range(100)])
print(sqlite3.connect("database").execute("select sum(number) from numbers").fetchall())
"""
"""SQLite locks ranges of its file."""


class Scene:
    """The targets of an attack: files, a neighbour task, a victim process and sockets, all of the server's user."""

    def __init__(self, folder: Path) -> None:
        self.secret = os.environ["SECRET"]
        self.mark = str(10**8 + secrets.randbelow(10**8))
        self.folder = folder
        folder.chmod(0o777)
        self.secret_file, self.open_file = folder / "secret", folder / "open"
        self.secret_file.write_text(self.secret)
        self.secret_file.chmod(0o600)
        self.open_file.write_text("unchanged")
        self.open_file.chmod(0o666)
        self.shared_memory = Path("/dev/shm", f"note-{self.mark}")
        self.shared_memory.write_text(self.secret)
        (folder / "folder").mkdir(mode=0o777)
        self.library = os.__file__
        self.library_text = Path(self.library).read_bytes()
        self.neighbour_home: Path | None = None
        """Home of the neighbour as it is seen here."""

        self.neighbour = ""
        """The same as the neighbour sees it."""

        self.tasks: Path | None = None
        self.workspace: Path | None = None
        arguments = [sys.executable, "-I", "-S", "-c", VICTIM, str(folder / "signalled")]
        self.victim = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, process_group=0)
        self.address = int(self.victim.stdout.readline())
        self.sockets = self._listen()

    def _listen(self) -> list[socket.socket]:
        stream, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stream.bind(("127.0.0.1", 0))
        datagram.bind(stream.getsockname())
        file, datagram_file = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        abstract = socket.socket(socket.AF_UNIX)
        file.bind(str(self.folder / "socket"))
        datagram_file.bind(str(self.folder / "datagrams"))
        abstract.bind(f"\0{self.mark}")
        for path in ("socket", "datagrams"):
            (self.folder / path).chmod(0o777)
        for listener in (stream, file, abstract):
            listener.listen()
        return [stream, datagram, file, datagram_file, abstract]

    def targets(self, *, is_bare: bool) -> dict[str, object]:
        """Return the targets as the program sees them."""
        numbers = {name: number_of(name) for name in CALLS}
        return {
            **numbers,
            "exit": {"x86_64": 60, "aarch64": 93}[os.uname().machine],
            "is_bare": is_bare,
            "secret_file": str(self.secret_file),
            "shared_memory": str(self.shared_memory),
            "open_file": str(self.open_file),
            "folder": str(self.folder),
            "neighbour": self.neighbour,
            "server": os.getpid(),
            "victim": self.victim.pid,
            "victim_group": os.getpgid(self.victim.pid),
            "address": self.address,
            "port": self.sockets[0].getsockname()[1],
            "socket_file": str(self.folder / "socket"),
            "datagram_file": str(self.folder / "datagrams"),
            "abstract": f"\0{self.mark}",
            "setuid_program": SETUID_PROGRAM,
            "mark": self.mark,
        }

    def find_tasks(self) -> None:
        """Find the folder of all workspaces from the neighbour's home."""
        self.neighbour = os.path.realpath(self.neighbour_home)
        self.tasks = Path(self.neighbour).parent.parent

    def has_received_data(self) -> bool:
        """Return whether a socket has received anything."""
        return bool(select.select(self.sockets, [], [], 0.05)[0])

    def was_signalled(self) -> bool:
        """Return whether the victim has received a signal or has ended."""
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            if (self.folder / "signalled").exists() or self.victim.poll() is not None:
                return True
            time.sleep(0.01)
        return False

    def victim_open_files(self) -> int:
        """Return the victim's limit on open files."""
        return resource.prlimit(self.victim.pid, resource.RLIMIT_NOFILE)[0]

    def victim_is_idle(self) -> bool:
        """Return whether the victim is in the lowest scheduling class."""
        return os.sched_getscheduler(self.victim.pid) == os.SCHED_IDLE

    def victim_oom_score(self) -> int:
        """Return how early the victim is killed when memory runs out."""
        return int(Path(f"/proc/{self.victim.pid}/oom_score_adj").read_text())

    def has_attribute(self) -> bool:
        """Return whether an attribute was set on the open file."""
        return "user.mark" in os.listxattr(self.open_file)

    def is_running(self, mark: str) -> bool:
        """Return whether a process has the mark in its name or its arguments; the runner itself has not.

        A single scan of /proc may miss a process that keeps forking: hence many scans.
        """
        return any(self._marked(mark) for _ in range(NUM_SCANS))

    def _marked(self, mark: str) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                words = (entry / "cmdline").read_bytes() + (entry / "comm").read_bytes()
                if mark.encode() in words and state not in "ZX":
                    found.append(int(entry.name))
        return found

    def workspace_remains(self) -> bool:
        """Return whether the run left anything in its workspace; spare supervisors and the neighbour have their own."""
        if self.workspace is not None:
            return self.workspace.exists()
        homes = [path for path in self.tasks.iterdir() if str(path) not in self.neighbour]
        return any(
            {path.name for path in home.iterdir()} - {"home", "tmp"} or _entries(home / "home") for home in homes
        )

    def close(self) -> None:
        """End the victim and the processes that a bare attack left, and restore Python's library."""
        self.victim.kill()
        self.victim.wait()
        self.shared_memory.unlink()
        for listener in self.sockets:
            listener.close()
        deadline = time.monotonic() + 5
        while (left := self._marked(self.mark)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if Path(self.library).read_bytes() != self.library_text:
            Path(self.library).write_bytes(self.library_text)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


@contextmanager
def new_scene() -> Iterator[Scene]:
    """Provide the scene of one run."""
    opened = Scene(Path(tempfile.mkdtemp(prefix="scene-")))
    try:
        yield opened
    finally:
        opened.close()


def run_bare(attack: Attack, scene: Scene) -> Result:
    """Run an attack as a runner without a sandbox does: in a subprocess, with a deadline and a pipe for the result."""
    scene.workspace = Path(tempfile.mkdtemp(prefix="bare-"))
    scene.neighbour_home = scene.folder / "neighbour" / "home"
    scene.neighbour = str(scene.neighbour_home)
    scene.neighbour_home.mkdir(parents=True)
    (scene.neighbour_home / "note").write_text(scene.secret)
    reading, writing = os.pipe()
    leaking, leak = os.pipe()
    os.write(leak, scene.secret.encode())
    begun_reading, begun = os.pipe()
    shell = ["sh", "-c", '"$@"; exit $?', "sh"] if attack.has_shell else []
    started = time.monotonic()
    process = subprocess.Popen(
        [*shell, sys.executable, "-c", source(attack, scene, is_bare=True, begin=f"os.write({begun}, b'!')")],
        cwd=scene.workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing, leaking, begun),
        start_new_session=True,
    )
    for descriptor in (writing, leak, leaking, begun):
        os.close(descriptor)
    # An interpreter may take longer to start than brief attacks may run.
    select.select([begun_reading], [], [], BARE_SECONDS)
    os.close(begun_reading)
    try:
        patience = attack.limits.seconds if attack.limits is BRIEF else BARE_SECONDS
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            output, _ = process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    seconds = time.monotonic() - started
    os.set_blocking(reading, False)
    channel = b""
    with suppress(BlockingIOError):
        channel = os.read(reading, 4096)
    os.close(reading)
    files = {}
    with suppress(OSError, RecursionError):
        for folder, _, names in os.walk(scene.workspace, followlinks=True):
            if len(files) < 1000:
                paths = [path for path in (Path(folder, name) for name in names) if path.is_file()]
                files |= {path.name: path.read_bytes()[:4096] for path in paths if os.access(path, os.R_OK)}
    with suppress(RecursionError):
        shutil.rmtree(scene.workspace, ignore_errors=True)
    return Result(output, files, seconds, process.returncode, channel)


async def run_in_sandbox(sandbox: ForkSandbox, attack: Attack, scene: Scene) -> Result:
    """Run an attack in the sandbox while a neighbour task runs."""
    note = f"import time; open('note', 'w').write({scene.secret!r}); time.sleep(30)"
    neighbour = asyncio.create_task(sandbox.run(SandboxTask(Python(note), limits=Limits(seconds=30))))
    try:
        deadline = time.monotonic() + 10
        while scene.neighbour_home is None and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
            scene.neighbour_home = find_neighbour()
        scene.find_tasks()
        program = Python(source(attack, scene, is_bare=False))
        outcome = await sandbox.run(SandboxTask(program, limits=attack.limits, keep_files=True))
        result = Result(outcome.stdout, dict(outcome.files or {}), outcome.seconds, outcome.exit_code)
        return result, repr(outcome)[:600], attack.succeeded(scene, result)
    finally:
        neighbour.cancel()
        await asyncio.wait([neighbour])
        await asyncio.to_thread(wait_until_gone)


def find_neighbour() -> Path | None:
    """Return the home of the task that has written a note.

    Where workspaces are mounts of a task's own, it is seen as the working directory of the task's process.
    """
    homes = Path(tempfile.gettempdir()).glob("turnmill-sandbox-*/tasks/*/home")
    for home in chain(homes, (process / "cwd" for process in Path("/proc").glob("[0-9]*"))):
        # The file may disappear with its task at any moment.
        with suppress(OSError):
            if "/tasks/" in os.path.realpath(home) and (home / "note").read_text():
                return home
    return None


def wait_until_gone() -> None:
    """Wait until the neighbour has ended."""
    while find_neighbour() is not None:
        time.sleep(0.005)


def sandbox_folders() -> list[str]:
    """Return the folders of sandboxes in the temporary folder."""
    return [str(path) for path in Path(tempfile.gettempdir()).glob("turnmill-sandbox-*")]


def source(attack: Attack, scene: Scene, *, is_bare: bool, begin: str = "") -> str:
    """Return the source of the program with its targets, which starts with the statement `begin`."""
    hold_seconds = 0.1 if is_bare else HOLD_SECONDS
    targets = f"TARGETS, HOLD = {scene.targets(is_bare=is_bare)!r}, {hold_seconds}"
    return f"{targets}\n{PREAMBLE}\n{begin}\n{attack.program}"


@contextmanager
def many_threads() -> Iterator[None]:
    """Run as many threads as a Ray cluster has in pods of the server's user."""
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(1500)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def run_all_bare(variant: str) -> dict[str, dict[str, object]]:
    """Return for every attack whether it succeeds bare."""
    findings: dict[str, dict[str, object]] = {}
    for attack in ALL_ATTACKS:
        with new_scene() as scene:
            control = attack.succeeded(scene, run_bare(attack, scene)) if variant in attack.variants else None
        findings[attack.name] = {"control": control}
    return findings


async def run_all_in_sandbox() -> dict[str, dict[str, object]]:
    """Return for every attack whether it succeeds in the sandbox, and the sandbox's report."""
    findings: dict[str, dict[str, object]] = {}
    sandbox = ForkSandbox()
    try:
        barriers = await sandbox.start()
        for attack in ALL_ATTACKS:
            with new_scene() as scene:
                _, report, succeeded = await run_in_sandbox(sandbox, attack, scene)
            findings[attack.name] = {"succeeded": succeeded, "report": report}
        with many_threads():
            after = await sandbox.run(SandboxTask(Command(("sh", "-c", "echo well & wait"))))
        database = await sandbox.run(SandboxTask(Python(USE_OF_A_DATABASE)))
    finally:
        await sandbox.close()
    works = (after.stdout, database.stdout) == (b"well\n", b"[(4950,)]\n")
    findings["afterwards"] = {"barriers": repr(barriers), "works": works, "left": sandbox_folders()}
    return findings


def main(variant: str) -> None:
    container.enter()
    shutil.copy("/usr/bin/id", SETUID_PROGRAM)
    Path(SETUID_PROGRAM).chmod(0o4755)
    child = os.fork()
    if child == 0:
        if variant in (NOBODY, POD):
            container.become_nobody()
            container.make_dumpable()
        if variant == POD:
            container.become_pod()
        os.environ["SECRET"] = secrets.token_hex(16)
        # The environment that /proc shows is the one a process starts with.
        os.execv(sys.executable, [sys.executable, __file__, "--inside", variant])
    while os.wait()[0] != child:
        pass  # The first process of a container inherits orphans.


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        bare = run_all_bare(sys.argv[2])
        sandboxed = asyncio.run(run_all_in_sandbox())
        print(json.dumps({name: bare.get(name, {}) | finding for name, finding in sandboxed.items()}))
    elif sys.argv[1] == "--sandboxed":
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        print(json.dumps(asyncio.run(run_all_in_sandbox())))
    else:
        main(sys.argv[1])
