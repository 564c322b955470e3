"""The fork server of a pod: one for all processes that Ray starts there, whatever run they belong to.

`python -m turnmill.runs.fork_server` starts it in the background, before `ray start`.
"""

import sys
from pathlib import Path

from turnmill.runs.fork_server import modules
from turnmill.runs.fork_server.launcher import CLIENT, PythonForkServer

FOLDER = Path("/tmp/turnmill-fork-server")


def start() -> None:
    """Start the pod's fork server, once; it stays when this process ends."""
    try:
        FOLDER.mkdir()
    except FileExistsError:
        return
    PythonForkServer(FOLDER, modules.EARLY, modules.LATE, outlives_parent=True)


def python() -> tuple[str, ...]:
    """Return the command that stands for Python in every pod of a cluster; without a fork server it runs Python."""
    return (sys.executable, "-I", "-S", str(CLIENT), str(FOLDER / "fork_server.sock"))
