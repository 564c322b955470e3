"""System calls of the sandbox, each in a child process: their effects cannot be undone."""

import errno
import os
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from turnmill.core import forking
from turnmill.sandboxes import kernel

ABI = kernel.landlock_abi()
needs_landlock = pytest.mark.skipif(ABI == 0, reason="this machine has no Landlock")


def in_child(check: Callable[[], None]) -> int:
    """Return the wait status of a child that runs a check; 0 if it passes."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def rule(path: Path, rights: int) -> tuple[int, int]:
    return os.open(path, os.O_PATH), rights


@needs_landlock
def test_landlock_allows_only_listed_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_text("x")

    def check() -> None:
        rules = [rule(tmp_path / "in", kernel.file_rights(ABI))]
        kernel.forbid_new_privileges()
        kernel.landlock_enter(kernel.landlock_ruleset(ABI, rules, tcp=True, scopes=0))
        (tmp_path / "in" / "file").write_text("y")
        with pytest.raises(PermissionError):
            (tmp_path / "out").read_text()
        with pytest.raises(PermissionError):
            (tmp_path / "in" / "file").rename(tmp_path / "moved")

    assert in_child(check) == 0


@needs_landlock
@pytest.mark.skipif(ABI < 4, reason="this machine's Landlock does not know TCP")
def test_landlock_refuses_tcp():
    def check() -> None:
        kernel.forbid_new_privileges()
        kernel.landlock_enter(kernel.landlock_ruleset(ABI, [], tcp=True, scopes=0))
        with socket.socket() as made, pytest.raises(PermissionError):
            made.bind(("127.0.0.1", 0))

    assert in_child(check) == 0


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="this machine's Landlock does not know scopes")
def test_landlock_confines_signals():
    def check() -> None:
        kernel.forbid_new_privileges()
        kernel.landlock_enter(kernel.landlock_ruleset(ABI, [], tcp=False, scopes=kernel.SCOPE_SIGNALS))
        with pytest.raises(PermissionError):
            os.kill(os.getppid(), 0)
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert in_child(check) == 0


@pytest.mark.parametrize(("abi", "highest"), [(1, 1 << 12), (2, 1 << 13), (3, 1 << 14), (4, 1 << 14), (5, 1 << 15)])
def test_file_rights_match_the_abi_version(abi, highest):
    assert kernel.file_rights(abi) == 2 * highest - 1


def test_a_filter_refuses_a_call():
    program = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # Allow all.

    def check() -> None:
        kernel.forbid_new_privileges()
        kernel.install_filter(program)
        assert "Seccomp:\t2" in Path("/proc/self/status").read_text()
        assert "NoNewPrivs:\t1" in Path("/proc/self/status").read_text()

    assert in_child(check) == 0


def test_an_invalid_filter_raises_an_error_that_names_seccomp():
    def check() -> None:
        kernel.forbid_new_privileges()
        with pytest.raises(OSError, match="seccomp") as failure:
            kernel.install_filter(struct.pack("HBBI", 0xFFFF, 0, 0, 0))
        assert failure.value.errno == errno.EINVAL

    assert in_child(check) == 0


def test_dropped_capabilities_cannot_be_regained():
    def check() -> None:
        kernel.drop_capabilities()
        status = Path("/proc/self/status").read_text()
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert f"{name}:\t{0:016x}" in status

    assert in_child(check) == 0


def test_adopt_orphans_makes_orphans_children_of_the_caller():
    def check() -> None:
        forking.adopt_orphans()
        reading, writing = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.read(reading, 1)
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        os.write(writing, b"x")
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7

    assert in_child(check) == 0


def test_a_child_dies_with_its_parent():
    reading, writing = os.pipe()

    def check() -> None:
        ready, tell = os.pipe()
        if os.fork() == 0:
            forking.die_with_parent(signal.SIGKILL)
            os.write(tell, b"x")
            signal.pause()
        os.read(ready, 1)

    assert in_child(check) == 0
    os.close(writing)
    assert os.read(reading, 1) == b""  # End of file: no process holds the writing end any more.


def test_a_failed_call_raises_an_error_that_names_it():
    with pytest.raises(OSError, match="setns"):
        kernel.set_namespace(-1, 0)


def test_a_forked_child_can_start_threads():
    parent = os.getpid()
    reading, writing = os.pipe()

    child = kernel.fork()
    if child == 0:
        thread = threading.Thread(target=lambda: os.write(writing, b"%d" % (os.getppid() == parent)))
        thread.start()
        thread.join()
        os._exit(7)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.close(writing)
