"""External programs that tests use: where they are found, and how they are unpacked."""

import lzma
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

CLUSTER = "TURNMILL_CLUSTER"
"""Environment variable with the path of a script whose command `tools FOLDER` unpacks programs there."""

TOOLS = "TURNMILL_TOOLS"
"""Environment variable with the folder that the programs are unpacked to."""


def end(process: "subprocess.Popen[Any]", seconds: float) -> None:
    """Terminate a process if it still runs, and kill it if it has not ended after some seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@cache
def find_program(name: str) -> Path | None:
    """Return the path of a program, or None if it is missing."""
    if found := shutil.which(name):
        return Path(found)
    cluster = os.environ.get(CLUSTER)
    folder = Path(os.environ.get(TOOLS) or Path(tempfile.gettempdir()) / f"turnmill-tools-{os.getuid()}")
    if cluster and not folder.exists():
        _unpack(cluster, folder)
    if cluster and folder.exists() and not (folder / name).exists():
        _decompress(Path(cluster).parent / "bin" / f"{name}.xz", folder / name)
    return folder / name if (folder / name).exists() else None


def why_no_program(name: str) -> str | None:
    """Return why a test that needs the program is skipped; None if the program is available."""
    if find_program(name) is not None:
        return None
    return f"no {name} in PATH, and no script in {CLUSTER} that unpacks it"


def _unpack(cluster: str, folder: Path) -> None:
    """Unpack into a temporary folder and rename it, so that other processes see all programs or none."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    subprocess.run([cluster, "tools", str(fresh)], check=True, capture_output=True, timeout=120)
    try:
        fresh.rename(folder)
    except OSError:
        # Another process was faster.
        shutil.rmtree(fresh)


def _decompress(packed: Path, path: Path) -> None:
    """Decompress a program that the script keeps for its own use."""
    if not packed.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as fresh, lzma.open(packed) as source:
        shutil.copyfileobj(source, fresh)
    Path(fresh.name).chmod(0o755)
    Path(fresh.name).rename(path)
