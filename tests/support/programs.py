"""Programs that tests run beside the code: where they are, and how they come to be there."""

import lzma
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

CLUSTER = "TURNMILL_CLUSTER"
"""Environment variable with the path of a script whose command `tools FOLDER` unpacks programs there."""

TOOLS = "TURNMILL_TOOLS"
"""Environment variable with the folder that the programs are unpacked to, and looked for first."""


@cache
def find_program(name: str) -> Path | None:
    """The program, or None where there is none."""
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
    """Why a test is skipped that needs the program; None where it is there."""
    if find_program(name) is not None:
        return None
    return f"no {name} in PATH, and no script in {CLUSTER} that unpacks it"


def _unpack(cluster: str, folder: Path) -> None:
    """Unpack beside the folder and move: tests in other processes see all of it or nothing."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    subprocess.run([cluster, "tools", str(fresh)], check=True, capture_output=True, timeout=120)
    try:
        fresh.rename(folder)
    except OSError:
        # Another process was faster.
        shutil.rmtree(fresh)


def _decompress(packed: Path, path: Path) -> None:
    """What the script keeps for its own use, beside what it unpacks."""
    if not packed.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as fresh, lzma.open(packed) as source:
        shutil.copyfileobj(source, fresh)
    Path(fresh.name).chmod(0o755)
    Path(fresh.name).rename(path)
