"""A program that plays one trajectory: started in a folder of its own, and ended with all its children."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Literal, Protocol, TypeVar

from turnmill.core import forking
from turnmill.core.errors import HarnessError
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.rollout.harness import entry_point

INHERITED = ("PATH", "LANG", "LC_ALL", PROCESS_MARK)
"""Environment variables that a program gets of those of the run; none of them is a secret."""

MAX_OUTPUT_BYTES = 1024**2
"""Size of the end of a program's output that is kept."""

MAX_ERROR_CHARACTERS = 500
PYTHON = sys.executable

How = Literal["exited", "timeout", "stopped"]
T = TypeVar("T")

_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended."""

    exit_code: int
    how: How
    output: str
    errors: str

    @property
    def result(self) -> Mapping[str, object]:
        """The JSON object on the last line of the output; empty if there is none."""
        lines = self.output.strip().splitlines()
        try:
            value = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its standard error, or to its output."""
        return last_words(self.errors) or last_words(self.output)


def last_words(text: str) -> str:
    """Return the end of a text, for error messages."""
    return text.strip()[-MAX_ERROR_CHARACTERS:]


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of this process with these names."""
    return {name: os.environ[name] for name in names if name in os.environ}


def entry_point_command(target: str, python: str | None) -> tuple[str, ...]:
    """Return the program that calls a function, by an interpreter of its own or by this one."""
    return python or PYTHON, entry_point.__file__, target


def import_paths(python: str | None) -> dict[str, str]:
    """Return where this interpreter finds the classes and functions that a job names; nothing for another one."""
    return inherited(["PYTHONPATH"]) if python is None else {}


def filled(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return a command with `{name}` replaced; other braces stay."""
    # One pass, so that a prompt with braces stays as it is.
    return [_NAME.sub(lambda found: values.get(found[1], found[0]), word) for word in command]


class Running(Protocol):
    """A process with which a trajectory's process group began."""

    async def wait(self) -> int:
        """Return its exit code, once it has ended."""

    def kill(self) -> None:
        """Kill it, and whatever is left of its group."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Standard input, output and error of a program: files, as children that outlive it would keep pipes open."""

    given: IO[bytes]
    output: IO[bytes]
    errors: IO[bytes]


class _Process:
    """A program as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        """Return its exit code, once it has ended."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill it, and whatever is left of its group."""
        kill_group(self._process.pid)


async def run_program(
    command: Sequence[str],
    *,
    task: Mapping[str, object],
    variables: Mapping[str, str],
    workspace: Path,
    timeout_seconds: float,
    stop: asyncio.Event,
    descriptors: Collection[int] = (),
) -> Ended:
    """Run a program, which inherits the descriptors, until it exits, its time is over, or `stop` is set.

    Raises HarnessError if it does not start.
    """

    async def start(streams: Streams) -> Running:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=workspace,
                env=inherited(INHERITED) | folders_of(workspace) | dict(variables),
                stdin=streams.given,
                stdout=streams.output,
                stderr=streams.errors,
                # A process group, which is killed whole.
                start_new_session=True,
                pass_fds=descriptors,
                preexec_fn=forking.die_with_parent,
            )
        except (OSError, ValueError) as error:
            raise HarnessError(
                f"spec.agent.command: {command[0]!r} cannot be started: {error}. "
                "Give a program in PATH, or its whole path."
            ) from error
        return _Process(process)

    return await run_started(start, task=task, timeout_seconds=timeout_seconds, stop=stop)


async def run_started(
    start: Callable[[Streams], Awaitable[Running]],
    *,
    task: Mapping[str, object],
    timeout_seconds: float,
    stop: asyncio.Event,
) -> Ended:
    """Start a process that reads the task, and wait until it exits, its time is over, or `stop` is set."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(json.dumps(task).encode())
        given.seek(0)
        process = await start(Streams(given, output, errors))
        try:
            how = await wait_for_end(asyncio.create_task(process.wait()), timeout_seconds, stop)
        finally:
            process.kill()
            exit_code = await process.wait()
        return Ended(exit_code, how, end_of(output), end_of(errors))


def folders_of(workspace: Path) -> dict[str, str]:
    """Return the environment variables that name a program's folder."""
    return {"HOME": str(workspace), "TMPDIR": str(workspace)}


async def wait_for_end(end: asyncio.Task[T], timeout_seconds: float, stop: asyncio.Event) -> How:
    """Return how an agent ended: by itself, or because its time is over or `stop` is set; then `end` is cancelled."""
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait((end, stopped), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Of no effect on what is done.
        end.cancel()
        stopped.cancel()
    if end in done:
        return "exited"
    return "stopped" if done else "timeout"


def end_of(file: IO[bytes]) -> str:
    """Return the end of a file that a program has written."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_OUTPUT_BYTES))
    return file.read().decode(errors="replace")


def kill_group(pid: int) -> None:
    """Kill a process and all of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
