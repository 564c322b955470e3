"""Starts a zygote and writes the executable that stands for Python."""

import shlex
import subprocess
import sys
from pathlib import Path

_SERVER = "turnmill.runs.zygote.server"
CLIENT = Path(__file__).with_name("client.py")
OUTLIVES = "--outlives-parent"


class Zygote:
    """A zygote in a folder of its own; `python` is the interpreter to give to others.

    It ends with the process that starts it, unless that is to be outlived.
    """

    def __init__(
        self, folder: Path, early: tuple[str, ...], late: tuple[str, ...], *, outlives_parent: bool = False
    ) -> None:
        self.python = folder / "python"
        self._socket = folder / "zygote.sock"
        self._write_executable()
        flags = [OUTLIVES] if outlives_parent else []
        with (folder / "zygote.log").open("wb") as output:
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
        """End the zygote, and with it every process that it forked."""
        self.process.kill()
        self.process.wait()
