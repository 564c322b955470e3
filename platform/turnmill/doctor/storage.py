"""Check of the folder in which runs are kept."""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from statistics import median

from turnmill.doctor.machine import GIB, MIB, first_line
from turnmill.doctor.results import CheckFailedError, Machine
from turnmill.observability import atomic_files

WRITES = 200
RATE_BYTES = 64 * MIB
FSYNCS = 20
MIN_FREE = 10 * GIB


def storage(machine: Machine) -> str:
    """The folder of runs: two processes append, replace a file and lock; and how fast it is."""
    folder = machine.scratch
    if (free := shutil.disk_usage(folder).free) < MIN_FREE:
        raise CheckFailedError(
            f"{machine.storage} has {free / GIB:.1f} GiB free",
            "Checkpoints need room: free some, or choose another folder with --storage.",
        )
    (folder / "state").write_text(json.dumps({"writer": -1, "text": ""}))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_and_replace, args=(folder, number)) for number in range(2)]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    problems = {text for number in range(2) for text in _complaints(folder / f"complaint-{number}")}
    problems |= {f"a writer ended with exit code {each.exitcode}" for each in writers if each.exitcode}
    for number in range(2):
        lines = (folder / f"appended-{number}").read_text().splitlines()
        if lines != [str(n) for n in range(WRITES)]:
            problems.add(f"{len(lines)} of {WRITES} appended lines arrived")
    if problems:
        raise CheckFailedError(
            f"{machine.storage}: {'; '.join(sorted(problems))}",
            "Runs need a file system with POSIX's rename and flock, such as NFS 4, Lustre or a local disk.",
        )
    rate, fsync = _write_rate(folder)
    return f"{machine.storage}: {rate / MIB:.0f} MiB/s, fsync {1000 * fsync:.1f} ms"


def _append_and_replace(folder: Path, number: int) -> None:
    """Append lines to a file of one's own, and replace a file of both; write down what goes wrong."""
    problems = set()
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            problems.add("a lock (flock) was given to two processes")
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                problems.add(f"flock is not supported ({error.strerror})")
    text = "x" * 10_000
    for count in range(WRITES):
        with (folder / f"appended-{number}").open("a") as file:
            file.write(f"{count}\n")
        atomic_files.write_text(folder / "state", json.dumps({"writer": number, "text": text}))
        try:
            json.loads((folder / "state").read_text())
        except (OSError, ValueError) as error:
            problems.add(f"a reader found a file missing or cut off while it was replaced ({first_line(error)})")
    (folder / f"complaint-{number}").write_text("\n".join(sorted(problems)))


def _complaints(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _write_rate(folder: Path) -> tuple[float, float]:
    """Return the rate of writing in bytes per second, and the median duration of an fsync in seconds."""
    path, block = folder / "rate", os.urandom(MIB)
    started = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(RATE_BYTES // MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    rate = RATE_BYTES / (time.perf_counter() - started)
    durations = []
    with path.open("wb") as file:
        for _ in range(FSYNCS):
            file.write(b"x")
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - started)
    path.unlink()
    return rate, median(durations)
