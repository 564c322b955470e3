"""Output of commands in pods: shown as it comes, or unpacked as an archive."""

import io
import sys
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from turnmill.cli.cluster.api import Cluster, ClusterError
from turnmill.cli.cluster.pods import Container

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_SECONDS = 1.0
MAX_ERROR_CHARACTERS = 500


class CommandOutput(io.RawIOBase):
    """What a command in a container prints, as a file; its errors are kept for a message."""

    def __init__(self, cluster: Cluster, where: Container, command: list[str]) -> None:
        self._stream = cluster.execute(where.pod, where.name, command)
        self._pending = b""
        self._errors = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "Buffer") -> int:
        """Fill a buffer with what has been printed; 0 once the command has ended."""
        while not self._pending:
            open_before = self._stream.is_open()
            if open_before:
                self._stream.update(timeout=READ_SECONDS)
            self._pending += self._stream.read_stdout(timeout=0) if self._stream.peek_stdout() else b""
            self._errors += self._stream.read_stderr(timeout=0) if self._stream.peek_stderr() else b""
            if not open_before and not self._pending:
                return 0
        target = memoryview(buffer)
        count = min(len(target), len(self._pending))
        target[:count], self._pending = self._pending[:count], self._pending[count:]
        return count

    def exit_code(self) -> int | None:
        """Return the exit code of a command that has ended; None if its pod has gone before it ended."""
        try:
            code: int | None = self._stream.returncode
        except (KeyError, TypeError, ValueError):
            return None
        return code

    @property
    def errors(self) -> str:
        """What the command has printed as errors, the end of it."""
        return " ".join(self._errors.decode(errors="replace").split())[-MAX_ERROR_CHARACTERS:]

    def close(self) -> None:
        """Close the connection, which ends no command by itself."""
        self._stream.close()
        super().close()


def show(cluster: Cluster, where: Container, command: list[str], to: IO[bytes] | None = None) -> int | None:
    """Copy what a command prints to standard output until it ends; return its exit code."""
    target = to or sys.stdout.buffer
    with CommandOutput(cluster, where, command) as output:
        buffer = memoryview(bytearray(1 << 16))
        while count := output.readinto(buffer):
            target.write(buffer[:count])
            target.flush()
        code = output.exit_code()
        if code and output.errors:
            raise ClusterError(f"{command[0]} in pod {where.pod}: {output.errors}")
        return code


def unpack(cluster: Cluster, where: Container, source: str, target: Path, exclude: list[str]) -> int:
    """Copy a folder of a container into a folder here, through `tar`; return the number of files."""
    options = [f"--exclude=./{name}" for name in exclude]
    # A run that goes on changes its files: tar says so with exit code 1, and has copied them.
    command = ["tar", "--create", "--file=-", *options, f"--directory={source}", "."]
    count = 0
    target.mkdir(parents=True, exist_ok=True)
    with CommandOutput(cluster, where, command) as output:
        try:
            with tarfile.open(fileobj=io.BufferedReader(output, 1 << 20), mode="r|") as archive:
                for member in archive:
                    archive.extract(member, target, filter="data")
                    count += member.isfile()
        except (tarfile.ReadError, EOFError) as error:
            reason = output.errors or "the connection was closed before the end"
            raise ClusterError(f"{source} cannot be copied from pod {where.pod}: {reason}") from error
    return count
