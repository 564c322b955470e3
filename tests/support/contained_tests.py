"""Runs tests in Linux namespaces of their own, so that they cannot harm anything else."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

INSIDE = "TURNMILL_CONTAINED"
SECONDS = 540.0

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_CONTAINED = pytest.StashKey[bool]()
_OUTCOMES = pytest.StashKey[dict[Path, dict[str, ElementTree.Element]]]()


def inside() -> bool:
    """Return True if this process runs in namespaces of its own."""
    return INSIDE in os.environ


def contain(items: Iterable[pytest.Item], fixture: str) -> None:
    """Have tests that use a fixture run inside. Outside, none of their fixtures is set up."""
    for item in items:
        if isinstance(item, pytest.Function) and fixture in item.fixturenames and not inside():
            item.stash[_CONTAINED] = True
            item.fixturenames = []


def run_contained(item: pytest.Item) -> bool | None:
    """Fail if the test fails inside; None if it is to run here. Those of a file run inside together, with the first."""
    if _CONTAINED not in item.stash:
        return None
    if not can_contain():
        pytest.skip("needs unshare and the right to make namespaces")
    outcomes = item.session.stash.setdefault(_OUTCOMES, {})
    if item.path not in outcomes:
        outcomes[item.path] = _run_inside(item)
    case = outcomes[item.path].get(item.name)
    if case is None:
        pytest.fail("It did not run inside; see the first test of the file.", pytrace=False)
    for skipped in case.iter("skipped"):
        pytest.skip(skipped.get("message", ""))
    if problems := [part for kind in ("failure", "error") for part in case.iter(kind)]:
        texts = [part.text or part.get("message") or part.tag for part in problems]
        pytest.fail("\n".join(texts), pytrace=False)
    return True


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


def _run_inside(first: pytest.Item) -> dict[str, ElementTree.Element]:
    """Return what JUnit's report says of each test, by its name."""
    chosen = [item.nodeid for item in first.session.items if item.path == first.path and _CONTAINED in item.stash]
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
            pytest.fail(f"pytest ended inside with {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
        return {case.get("name", ""): case for case in ElementTree.parse(report).iter("testcase")}
