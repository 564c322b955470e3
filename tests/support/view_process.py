"""`turnmill view` as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

START_SECONDS = 60


class ViewProcess:
    """`turnmill view`, behind a command that becomes it, such as one that mounts a folder."""

    def __init__(self, *arguments: str, cache: Path, behind: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*behind, sys.executable, "-m", "turnmill.cli.main", "view", *arguments],
            env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests that run in the background may ignore SIGINT, and child processes inherit that.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def address(self) -> str:
        """Return the address of the page, once it answers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, self.process.communicate(timeout=10)
        return line.partition(": ")[2].split()[0]

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        return self.process.returncode
