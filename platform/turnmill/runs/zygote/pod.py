"""The zygote of a pod: one for all processes that Ray starts there, whatever run they belong to.

`python -m turnmill.runs.zygote` starts it in the background, before `ray start`.
"""

import sys
from pathlib import Path

from turnmill.runs.zygote import modules
from turnmill.runs.zygote.launcher import CLIENT, Zygote

FOLDER = Path("/tmp/turnmill-zygote")


def start() -> None:
    """Start the pod's zygote, once; it stays when this process ends."""
    try:
        FOLDER.mkdir()
    except FileExistsError:
        return
    Zygote(FOLDER, modules.EARLY, modules.LATE, outlives_parent=True)


def python() -> tuple[str, ...]:
    """The command that stands for Python in every pod of a cluster; where a pod has no zygote it is Python's own."""
    return (sys.executable, "-I", "-S", str(CLIENT), str(FOLDER / "zygote.sock"))
