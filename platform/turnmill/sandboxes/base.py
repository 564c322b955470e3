"""What is run in a sandbox, and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

MIB = 1024**2

Limit = Literal["time", "cpu", "memory", "output", "files", "processes"]
"""A limit that ended a run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take."""

    seconds: float = 10.0
    cpu_seconds: int = 11
    """Of all processes together. More than `seconds`: else a loop without end meets now the one, now the other."""

    memory_bytes: int = 1024 * MIB
    file_bytes: int = 64 * MIB
    """Of all files that the run writes together."""

    processes: int = 64
    output_bytes: int = MIB
    """Of stdout and stderr each; what comes after is dropped and the run goes on."""

    network: bool = False


@dataclass(frozen=True, slots=True)
class Python:
    """Source that runs as `__main__` of a forked interpreter; tracebacks name `filename`."""

    source: str
    filename: str = "main.py"


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, found in the sandbox's PATH."""

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """`module:name` of this project, called inside the sandbox with bytes; what it returns is `Outcome.value`.

    For sessions: it unpickles what earlier code left, runs code and pickles again, all of it untrusted.
    """

    target: str
    argument: bytes
    attends: bool = False
    """It runs nothing untrusted in its own process, only in programs that it starts; its task has no more than limits.
    Where those programs cannot reach it, one process, an attendant, serves task after task."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run. `files` are put into its workspace, which is its home and the one place it may write to."""

    program: Python | Command | Function
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path relative to the workspace."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """Paths of the server's files by their name in the workspace, where the task finds a copy. The kernel makes it:
    nothing of it passes through the server's memory or between the processes."""

    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    """Where it starts, relative to the workspace."""

    limits: Limits = field(default_factory=Limits)
    merge_output: bool = False
    """stderr goes where stdout goes, in the order written."""

    keep_files: bool = False
    """Return the workspace's files."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. Everything in it but `limit` and `seconds` comes from untrusted code."""

    exit_code: int | None
    """None if a signal or a limit ended it."""

    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    limit: Limit | None = None
    value: bytes | None = None
    """Of a Function that returned; None otherwise."""

    files: Mapping[str, bytes] | None = None
    """The workspace afterwards, if it was to be kept; None if it was not, or was larger than `file_bytes`."""

    seconds: float = 0.0


class Sandbox(Protocol):
    """Runs tasks, any number at once. Raises SandboxError where it could not run one: nothing of it took effect."""

    async def run(self, task: Task) -> Outcome:
        """Run to the end, or to the first limit; nothing of the run is left afterwards."""
        ...

    async def close(self) -> None:
        """End what runs; later runs raise SandboxError."""
        ...
