"""Interface of the sandbox: tasks, their limits and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

MIB = 1024**2

Limit = Literal["time", "cpu", "memory", "output", "files", "processes"]
"""The limit that ended a task; each value names a field of `Limits`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that a task may use, summed over all its processes."""

    seconds: float = 10.0
    """Wall-clock time."""

    cpu_seconds: int = 11
    """CPU time. Keep it above `seconds`: if they are equal, either may end an endless loop."""

    memory_bytes: int = 1024 * MIB
    """Resident memory; also the address space of each process, on top of the interpreter's own."""

    file_bytes: int = 64 * MIB
    """Disk space of all files that the task writes, and maximum size of one file."""

    processes: int = 64
    """Number of processes at the same time."""

    output_bytes: int = MIB
    """Bytes kept of stdout and of stderr, each; the rest is dropped while the task goes on."""

    network: bool = False
    """Allow TCP and UDP to all addresses to which the server itself may connect."""


@dataclass(frozen=True, slots=True)
class Python:
    """Source code to run as `__main__` of a forked interpreter; tracebacks show `filename`."""

    source: str
    filename: str = "main.py"


@dataclass(frozen=True, slots=True)
class Command:
    """An executable with its arguments, found through the sandbox's PATH."""

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A preloaded function `module:name` from bytes to bytes, which become `SandboxResult.value`.

    Sessions use it: the function unpickles the state of earlier code, runs code and pickles again, all of it untrusted.
    """

    target: str
    argument: bytes
    persistent: bool = False
    """Promise that the function runs untrusted code only in programs that it starts, not in its own process.

    One process, a persistent worker, may then serve many tasks, if those programs cannot affect it. Such a task sets
    only `limits`.
    """


Program = Python | Command | Function


@dataclass(frozen=True, slots=True)
class SandboxTask:
    """A program to run in a workspace of its own, which is its home and the only folder where it may write.

    Paths are relative to the workspace and must not leave it; `Sandbox.run` raises SandboxError for others.
    """

    program: Program
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of files by path."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """Paths of files on the server, by their names in the workspace, at most 16.

    The kernel copies them, so that their contents pass neither through the server's memory nor between processes.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to add."""

    folder: str = "."
    """Working directory."""

    limits: Limits = field(default_factory=Limits)
    merge_output: bool = False
    """Write stderr to stdout, in the order written."""

    keep_files: bool = False
    """Return the files of the workspace."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Result of a task. All fields except `limit` and `seconds` come from untrusted code."""

    exit_code: int | None
    """The program's exit code; None if a signal or a limit ended it."""

    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """True if stdout or stderr was longer than `Limits.output_bytes`."""

    limit: Limit | None = None
    """The limit that ended the task; None if none did."""

    value: bytes | None = None
    """The return value of a Function; None if it did not return."""

    files: Mapping[str, bytes] | None = None
    """The workspace's regular files by path, with `keep_files`; None if they exceed `Limits.file_bytes`."""

    seconds: float = 0.0
    """Wall-clock time of the run."""

    waiting_seconds: float = 0.0
    """Time before the run, until the sandbox had room for it."""


class Sandbox(Protocol):
    """Runs tasks concurrently, each isolated from the server and from the others."""

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Run a task until it ends or reaches a limit, then end all its processes and delete its files.

        Raises SandboxError if the task could not be run; it then had no effect and may be repeated.
        """
        ...

    async def close(self) -> None:
        """End all running tasks; later calls of `run` raise SandboxError."""
        ...


Task, Outcome = SandboxTask, SandboxResult
"""Earlier names, for tools of users."""
