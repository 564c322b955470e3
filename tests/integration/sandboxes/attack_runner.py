"""Runs every attack, bare and in the sandbox, in a throw-away container: `attack_runner.py VARIANT`; prints JSON.

In a pod, which is one, `attack_runner.py --sandboxed` runs them in the sandbox alone.
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
from pathlib import Path

from attack_programs import ATTACKS, BRIEF, NOBODY, POD, PREAMBLE, Attack, Result

from support import container
from turnmill.sandboxes.base import Command, Limits, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox
from turnmill.sandboxes.syscall_numbers import number_of

BARE_SECONDS = 60
LOOKS = 100
SETUID_PROGRAM = "/usr/local/bin/id-of-root"
VICTIM = """
import ctypes, os, signal, sys, time
b = ctypes.create_string_buffer(os.environ["SECRET"].encode(), 64)
note = lambda *_: open(sys.argv[1], "w").close()
for number in (signal.SIGUSR1, signal.SIGWINCH): signal.signal(number, note)
print(ctypes.addressof(b), flush=True)
while True: time.sleep(1)
"""


class Scene:
    """What an attack is after: files, a neighbour, a victim, sockets, all of the server's user."""

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
        self.library = os.__file__
        self.library_text = Path(self.library).read_bytes()
        self.neighbour = ""
        self.tasks: Path | None = None
        self.workspace: Path | None = None
        arguments = [sys.executable, "-I", "-S", "-c", VICTIM, str(folder / "signalled")]
        self.victim = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
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

    def place(self, *, is_bare: bool) -> dict[str, object]:
        """What the program is told."""
        numbers = {name: number_of(name) for name in ("clone", "keyctl", "io_uring_setup", "userfaultfd")}
        return {
            **numbers,
            "is_bare": is_bare,
            "secret_file": str(self.secret_file),
            "open_file": str(self.open_file),
            "folder": str(self.folder),
            "neighbour": self.neighbour,
            "server": os.getpid(),
            "victim": self.victim.pid,
            "address": self.address,
            "port": self.sockets[0].getsockname()[1],
            "socket_file": str(self.folder / "socket"),
            "datagram_file": str(self.folder / "datagrams"),
            "abstract": f"\0{self.mark}",
            "setuid_program": SETUID_PROGRAM,
            "mark": self.mark,
        }

    def wait_for_visit(self) -> bool:
        """Whether anything came in."""
        return bool(select.select(self.sockets, [], [], 0.05)[0])

    def was_signalled(self) -> bool:
        """Whether the victim got a signal, or died of one."""
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            if (self.folder / "signalled").exists() or self.victim.poll() is not None:
                return True
            time.sleep(0.01)
        return False

    def victim_open_files(self) -> int:
        """Its limit on open files."""
        return resource.prlimit(self.victim.pid, resource.RLIMIT_NOFILE)[0]

    def victim_is_idle(self) -> bool:
        """Whether it was put into the lowest class."""
        return os.sched_getscheduler(self.victim.pid) == os.SCHED_IDLE

    def has_attribute(self) -> bool:
        """Whether an attribute was set on the open file."""
        return "user.mark" in os.listxattr(self.open_file)

    def is_running(self, mark: str) -> bool:
        """Whether a process bears the mark, by its name or its arguments; the runner itself does not.

        One that forks all the time is seldom there for as long as a look takes: hence many looks.
        """
        return any(self._marked(mark) for _ in range(LOOKS))

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
        """Whether anything is left of a run's workspace; the waiting and the neighbour have theirs."""
        if self.workspace is not None:
            return self.workspace.exists()
        homes = [path for path in self.tasks.iterdir() if str(path) not in self.neighbour]
        return any(
            {path.name for path in home.iterdir()} - {"home", "tmp"} or _entries(home / "home") for home in homes
        )

    def close(self) -> None:
        """End the victim and what a bare attack left."""
        self.victim.kill()
        self.victim.wait()
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
def scene() -> Iterator[Scene]:
    """A scene for one run."""
    opened = Scene(Path(tempfile.mkdtemp(prefix="scene-")))
    try:
        yield opened
    finally:
        opened.close()


def run_bare(attack: Attack, here: Scene) -> Result:
    """As a runner without a sandbox would: a subprocess, a deadline with SIGTERM, a pipe for the result."""
    here.workspace = Path(tempfile.mkdtemp(prefix="bare-"))
    here.neighbour = str(here.folder / "neighbour" / "home")
    Path(here.neighbour).mkdir(parents=True)
    (Path(here.neighbour) / "note").write_text(here.secret)
    reading, writing = os.pipe()
    leaking, leak = os.pipe()
    os.write(leak, here.secret.encode())
    shell = ["sh", "-c", '"$@"; exit $?', "sh"] if attack.has_shell else []
    started = time.monotonic()
    process = subprocess.Popen(
        [*shell, sys.executable, "-c", source(attack, here, is_bare=True)],
        cwd=here.workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing, leaking),
        start_new_session=True,
    )
    for descriptor in (writing, leak, leaking):
        os.close(descriptor)
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
        for folder, _, names in os.walk(here.workspace, followlinks=True):
            if len(files) < 1000:
                paths = [path for path in (Path(folder, name) for name in names) if path.is_file()]
                files |= {path.name: path.read_bytes()[:4096] for path in paths if os.access(path, os.R_OK)}
    with suppress(RecursionError):
        shutil.rmtree(here.workspace, ignore_errors=True)
    return Result(output, files, seconds, process.returncode, channel)


async def run_in_sandbox(sandbox: ForkSandbox, attack: Attack, here: Scene) -> Result:
    """The same program, with a neighbour that runs meanwhile."""
    note = f"import time; open('note', 'w').write({here.secret!r}); time.sleep(30)"
    neighbour = asyncio.create_task(sandbox.run(SandboxTask(Python(note), limits=Limits(seconds=30))))
    try:
        deadline = time.monotonic() + 10
        while not here.neighbour and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
            here.neighbour = find_neighbour()
        here.tasks = Path(here.neighbour).parent.parent
        program = Python(source(attack, here, is_bare=False))
        outcome = await sandbox.run(SandboxTask(program, limits=attack.limits, keep_files=True))
        result = Result(outcome.stdout, dict(outcome.files or {}), outcome.seconds, outcome.exit_code)
        return result, repr(outcome)[:600], attack.succeeded(here, result)
    finally:
        neighbour.cancel()
        await asyncio.wait([neighbour])
        await asyncio.to_thread(wait_until_gone)


def find_neighbour() -> str:
    """The home of the task that has left a note; nothing if there is none."""
    for note in Path(tempfile.gettempdir()).glob("turnmill-sandbox-*/tasks/*/home/note"):
        # It may go with its task at any moment.
        with suppress(FileNotFoundError):
            if note.read_text():
                return str(note.parent)
    return ""


def wait_until_gone() -> None:
    """Until the neighbour is."""
    while find_neighbour():
        time.sleep(0.005)


def sandbox_folders() -> list[str]:
    """What sandboxes have in the temporary folder."""
    return [str(path) for path in Path(tempfile.gettempdir()).glob("turnmill-sandbox-*")]


def source(attack: Attack, here: Scene, *, is_bare: bool) -> str:
    """The program with what it must know."""
    return f"PLACE = {here.place(is_bare=is_bare)!r}\n{PREAMBLE}\n{attack.program}"


@contextmanager
def many_threads() -> Iterator[None]:
    """As many as a Ray cluster has in pods of the same user, beside the server."""
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(1500)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def run_all_bare(variant: str) -> dict[str, dict[str, object]]:
    """Every attack: whether it works bare."""
    findings: dict[str, dict[str, object]] = {}
    for attack in ATTACKS:
        with scene() as here:
            control = attack.succeeded(here, run_bare(attack, here)) if variant in attack.variants else None
        findings[attack.name] = {"control": control}
    return findings


async def run_all_in_sandbox() -> dict[str, dict[str, object]]:
    """Every attack: whether it works in the sandbox, and what the sandbox said."""
    findings: dict[str, dict[str, object]] = {}
    sandbox = ForkSandbox()
    try:
        barriers = await sandbox.start()
        for attack in ATTACKS:
            with scene() as here:
                _, said, succeeded = await run_in_sandbox(sandbox, attack, here)
            findings[attack.name] = {"succeeded": succeeded, "said": said}
        with many_threads():
            after = await sandbox.run(SandboxTask(Command(("sh", "-c", "echo well & wait"))))
    finally:
        await sandbox.close()
    findings["afterwards"] = {"barriers": repr(barriers), "works": after.stdout == b"well\n", "left": sandbox_folders()}
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
        pass  # The first process of a container inherits what others leave.


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
