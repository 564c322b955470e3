"""One task alone, and sixteen clients at once, in the sandbox; beside it, a bare subprocess of the same interpreter.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/sandbox.py [--seconds 3]
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from runs import table

from turnmill.sandboxes.base import Command, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox, ProcessSandbox

CLIENTS, WARM_UP = 16, 5
PROGRAMS = {
    "print(1)": Python("print(1)"),
    "with numpy": Python("import numpy; print(numpy.arange(3).sum())"),
    "with sympy": Python("import sympy; print(sympy.sqrt(8))"),
    "bash -c 'echo 1'": Command(("bash", "-c", "echo 1")),
}
Run = Callable[[], Awaitable[object]]


async def median_milliseconds(run: Run, seconds: float) -> str:
    """One after the other, and the lower and upper tenth."""
    for _ in range(WARM_UP):
        await run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        await run()
        times.append((time.perf_counter() - started) * 1e3)
    low, *_, high = statistics.quantiles(times, n=10)
    return f"{statistics.median(times):.1f} ({low:.1f} to {high:.1f})"


async def calls_per_second(run: Run, seconds: float) -> str:
    """Sixteen clients, each with its next call as soon as it has the answer."""
    end = time.perf_counter() + seconds

    async def client() -> int:
        calls = 0
        while time.perf_counter() < end:
            await run()
            calls += 1
        return calls

    started = time.perf_counter()
    calls = sum(await asyncio.gather(*(client() for _ in range(CLIENTS))))
    return f"{calls / (time.perf_counter() - started):.0f}"


async def bare(program: Python | Command) -> None:
    arguments = program.arguments if isinstance(program, Command) else (sys.executable, "-c", program.source)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments, stdout=pipe, stderr=pipe)
    await process.communicate()


async def measure(seconds: float) -> None:
    sandboxes = {
        "sandbox": ForkSandbox(),
        "sandbox without namespaces, as in a pod": ForkSandbox(namespaces=False),
        "--sandbox=process": ProcessSandbox(),
    }
    rows = []
    try:
        for label, program in PROGRAMS.items():
            ways: dict[str, Run] = {
                name: (lambda s=sandbox, p=program: s.run(SandboxTask(p))) for name, sandbox in sandboxes.items()
            }
            ways["bare subprocess"] = lambda p=program: bare(p)
            for name, run in ways.items():
                alone = await median_milliseconds(run, seconds)
                rows.append([label, name, alone, await calls_per_second(run, seconds)])
    finally:
        for sandbox in sandboxes.values():
            await sandbox.close()
    print(table(["task", "run by", "ms alone: median (p10 to p90)", f"calls/s, {CLIENTS} clients"], rows))
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    asyncio.run(measure(parser.parse_args().seconds))
