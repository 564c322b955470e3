"""Fork server of a pod, for all processes that Ray starts there, whatever their run.

`python -m turnmill.runs.fork_server` starts it in the background, before `ray start`.
"""

import os
import sys
from pathlib import Path

from turnmill.core.process_mark import NO_MARK, PROCESS_MARK
from turnmill.runs.fork_server import modules
from turnmill.runs.fork_server.launcher import CLIENT, PythonForkServer

FOLDER = Path("/tmp/turnmill-fork-server")


def start() -> None:
    """Start the pod's fork server, once; it outlives this process."""
    try:
        FOLDER.mkdir()
    except FileExistsError:
        return
    os.environ.setdefault(PROCESS_MARK, NO_MARK)
    PythonForkServer(FOLDER, modules.EARLY, modules.LATE, outlives_parent=True)


def python() -> tuple[str, ...]:
    """Return the command that replaces Python in all pods of a cluster; without a fork server it runs Python."""
    return (sys.executable, "-I", "-S", str(CLIENT), str(FOLDER / "fork_server.sock"))
