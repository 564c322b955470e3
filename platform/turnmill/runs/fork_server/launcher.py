"""Start of a fork server, and of the executable that replaces Python."""

import os
import shlex
import socket
import struct
import subprocess
import sys
from pathlib import Path

from turnmill.core import forking

_SERVER = "turnmill.runs.fork_server.server"
CLIENT = Path(__file__).with_name("client.py")
INTERPRETER = "TURNMILL_FORK_SERVER_PYTHON"
"""Names another interpreter for fork servers, such as the `python` of a fork server that has made their early imports.

A process that starts many runs, such as that of a test suite, saves each of them these imports.
"""


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
        interpreter = os.environ.get(INTERPRETER, sys.executable)
        with (folder / "fork_server.log").open("wb") as output:
            self.process = subprocess.Popen(
                [interpreter, "-m", _SERVER, str(self._socket), str(self.python), *early, "--", *late],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Before it is executed, as the interpreter may be a client, whose end ends the fork that is the server.
                preexec_fn=None if outlives_parent else forking.die_with_parent,
            )
        # Clients wait for its socket as long as it is there.
        Path(f"{self._socket}.pid").write_text(str(self.process.pid))

    def _write_executable(self) -> None:
        command = shlex.join([sys.executable, "-I", "-S", str(CLIENT), str(self._socket)])
        self.python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self.python.chmod(0o755)

    def server_pid(self) -> int | None:
        """Return the process that forks, which may be a fork itself; None if it is not there."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(str(self._socket))
                # The listener's, of the process that has called `listen`: unix(7).
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                return None
        return int(struct.unpack("3i", peer)[0])

    def close(self) -> None:
        """End the fork server and all processes that it forked."""
        self.process.kill()
        self.process.wait()
