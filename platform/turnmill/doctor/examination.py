"""Runs the checks of `turnmill doctor`, each within a time limit."""

import dataclasses
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.doctor import machine as of_machine
from turnmill.doctor import training as of_training
from turnmill.doctor.attention import attention
from turnmill.doctor.links import links
from turnmill.doctor.ranks import ranks
from turnmill.doctor.results import Check, CheckFailedError, CheckSkippedError, Machine, Result
from turnmill.doctor.storage import storage

CHECKS = (
    Check("packages", of_machine.packages, 180),
    Check("GPUs", of_machine.gpus, 120, needs=("packages",)),
    Check("inference engine", of_machine.inference_engine, 120, needs=("packages",)),
    Check("attention", attention, 120, needs=("packages", "GPUs")),
    Check("memory", of_machine.memory, 30),
    Check("open files", of_machine.open_files, 30),
    Check("storage", storage, 300),
    Check("network", of_machine.network, 60, needs=("packages",)),
    Check("ranks", ranks, 300, needs=("packages", "GPUs")),
    Check("training", of_training.training, 3600, needs=("packages", "GPUs", "storage"), trains=True),
    Check("resume", of_training.resume, 3600, needs=("training",), trains=True),
    Check("engine loss", of_training.engine_loss, 3600, needs=("packages", "GPUs", "storage"), trains=True),
)
OF_LINKS = (*CHECKS[:2], Check("links", links, 900, needs=("packages", "GPUs")))
"""What several machines check together."""

END_SECONDS = 5.0


def examine(machine: Machine, *, trains: bool, on_start: Callable[[str], None] = lambda _: None) -> list[Result]:
    """Run the checks in order and return their results; without `trains`, only those that start no run.

    With peers, the links between the machines are checked, and what that needs.

    What they write lies in a folder of its own in the storage, which stays if a run failed. Raises SettingsError if the
    storage cannot be written to.
    """
    try:
        machine.storage.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="turnmill-doctor-", dir=machine.storage))
    except OSError as error:
        raise SettingsError(
            f"{machine.storage} cannot be written to: {error.strerror}. Choose another folder with --storage."
        ) from error
    results: list[Result] = []
    unmet: set[str] = set()
    keep = False
    try:
        for check in OF_LINKS if machine.peers else CHECKS:
            if check.trains and not trains:
                continue
            if missing := [name for name in check.needs if name in unmet]:
                results.append(Result(check.name, "skipped", f"needs the check {missing[0]!r}"))
                unmet.add(check.name)
                continue
            on_start(check.name)
            result = _result(check, dataclasses.replace(machine, scratch=scratch))
            results.append(result)
            if result.status == "failed":
                unmet.add(check.name)
                keep = keep or check.trains
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return results


def _result(check: Check, machine: Machine) -> Result:
    started = time.monotonic()
    # Runs are processes of their own, which end them in order; everything else may crash, hang, or hold GPU memory.
    result = _in_this_process(check, machine) if check.trains else _in_own_process(check, machine)
    return dataclasses.replace(result, seconds=round(time.monotonic() - started, 2))


def _in_this_process(check: Check, machine: Machine) -> Result:
    try:
        return Result(check.name, "ok", check.run(machine))
    except CheckSkippedError as reason:
        return Result(check.name, "skipped", str(reason))
    except CheckFailedError as error:
        return Result(check.name, "failed", error.found, error.way_out)
    except Exception as error:
        return Result(check.name, "failed", f"{type(error).__name__}: {error}")


def _in_own_process(check: Check, machine: Machine) -> Result:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, check, machine))
    process.start()
    there.close()
    try:
        if not here.poll(check.seconds):
            return Result(check.name, "failed", f"no result after {check.seconds:.0f} s")
        result: Result = here.recv()
        return result
    except EOFError:
        process.join(END_SECONDS)
        return Result(check.name, "failed", f"its process ended with exit code {process.exitcode}")
    finally:
        here.close()
        _end_group(process.pid)
        process.join()


def _answer(connection: Connection, check: Check, machine: Machine) -> None:
    """Run a check as the leader of a group of processes, and send its result."""
    os.setsid()
    with connection:
        connection.send(_in_this_process(check, machine))


def _end_group(pid: int | None) -> None:
    """Kill a check's process and those that it has started."""
    if pid is not None:
        # It may have ended before it became the leader of a group.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
