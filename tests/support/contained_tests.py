"""Runs tests in Linux namespaces of their own, so that they cannot harm anything else."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

INSIDE = "TURNMILL_CONTAINED"
SECONDS = 540.0

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_OUTCOMES = pytest.StashKey[dict[Path, dict[str, str]]]()


def inside() -> bool:
    """Return True if this process runs in namespaces of its own."""
    return INSIDE in os.environ


def run_contained(item: pytest.Item) -> None:
    """Fail if the test fails inside; the selected tests of a file run inside together, with the first of them."""
    outcomes = item.session.stash.setdefault(_OUTCOMES, {})
    if item.path not in outcomes:
        outcomes[item.path] = _run_inside(item)
    problem = outcomes[item.path].get(item.name, "It did not run inside; see the first test of the file.")
    if problem:
        pytest.fail(problem, pytrace=False)


def bring_loopback_up() -> None:
    """Enable the loopback device, which is down in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("h", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


@cache
def can_contain() -> bool:
    """Return True if this machine allows namespaces."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_unshare(), "true"], capture_output=True).returncode == 0


def _unshare() -> list[str]:
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *rights, "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--"]


def _run_inside(first: pytest.Item) -> dict[str, str]:
    """Return the failure of each test by name; empty for tests that pass or are skipped."""
    chosen = [item.nodeid for item in first.session.items if item.path == first.path]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-n0", f"--junitxml={report}"]
        done = subprocess.run(
            [*_unshare(), sys.executable, "-m", "pytest", *options, *chosen],
            cwd=first.config.rootpath,
            env=os.environ | {INSIDE: "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if not report.exists():
            return {first.name: f"pytest ended inside with {done.returncode}:\n{done.stdout}\n{done.stderr}"}
        return {case.get("name", ""): _problem(case) for case in ElementTree.parse(report).iter("testcase")}


def _problem(case: ElementTree.Element) -> str:
    parts = [part for kind in ("failure", "error") for part in case.iter(kind)]
    return "\n".join(part.text or part.get("message") or part.tag for part in parts)
