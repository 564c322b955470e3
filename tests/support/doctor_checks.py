"""Checks for the tests of `turnmill doctor`, in a module that other processes can import."""

import os
import time

from turnmill.doctor.results import CheckFailedError, CheckSkippedError, Machine


def good(machine: Machine) -> str:
    """Succeed."""
    (machine.scratch / "good").write_text("written")
    return "fine"


def bad(machine: Machine) -> str:
    """Fail."""
    raise CheckFailedError("too small", "Take a larger one.")


def broken(machine: Machine) -> str:
    """Raise an exception that no check means to raise."""
    raise KeyError("absent")


def does_not_apply(machine: Machine) -> str:
    """Skip the check."""
    raise CheckSkippedError("no GPU")


def crashes(machine: Machine) -> str:
    """End the process by SIGABRT."""
    os.abort()


def hangs(machine: Machine) -> str:
    """Wait for ever, with a child that does so, too."""
    pid = os.fork()
    if pid:
        (machine.storage / "child").write_text(str(pid))
    while True:
        time.sleep(1)
