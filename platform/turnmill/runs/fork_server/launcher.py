"""Start of a fork server, and of the executable that replaces Python."""

import shlex
import subprocess
import sys
from pathlib import Path

_SERVER = "turnmill.runs.fork_server.server"
CLIENT = Path(__file__).with_name("client.py")
OUTLIVES = "--outlives-parent"


class PythonForkServer:
    """A fork server with its files in `folder`; `python` is the executable to use as the interpreter.

    It ends with the process that starts it, unless it is to outlive it.
    """

    def __init__(
        self, folder: Path, early: tuple[str, ...], late: tuple[str, ...], *, outlives_parent: bool = False
    ) -> None:
        self.python = folder / "python"
        self._socket = folder / "fork_server.sock"
        self._write_executable()
        flags = [OUTLIVES] if outlives_parent else []
        with (folder / "fork_server.log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", _SERVER, *flags, str(self._socket), str(self.python), *early, "--", *late],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _write_executable(self) -> None:
        command = shlex.join([sys.executable, "-I", "-S", str(CLIENT), str(self._socket)])
        self.python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self.python.chmod(0o755)

    def close(self) -> None:
        """End the fork server and all processes that it forked."""
        self.process.kill()
        self.process.wait()
