"""Servers that a run starts as processes of this machine."""

import subprocess
import urllib.error
import urllib.request
from pathlib import Path


def is_healthy(url: str) -> bool:
    """Return whether a server answers at `/health`."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Terminate a process, and kill it if it does not end in time."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log_file: Path, lines: int) -> str:
    """Return the last lines of a log."""
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-lines:])
