"""The tool server: latency alone, calls a second at 16 clients, scaling over replicas; beside it, another server.

.venv/bin/python benchmarks/tool_server.py latency            # one server, python_code and bash_terminal
.venv/bin/python benchmarks/tool_server.py latency --peer http://127.0.0.1:5500/get_observation
.venv/bin/python benchmarks/tool_server.py replicas           # 1 and 2 servers, each on a core with its clients
.venv/bin/python benchmarks/tool_server.py waiting --most 16  # tools that only wait, 1 to 16 servers

The load generator is a process of its own. A peer is a server of verl-tool, started as its README says.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from runs import table
from tool_servers import Load, load, serving

from support.server_process import ServerProcess
from turnmill.trajectories.embedded import EmbeddedStore

KINDS = ("python_code", "bash_terminal")
CLIENTS_PER_WAITING_SERVER = 2

WAITING_TOOL = '''
import asyncio
from typing import ClassVar

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register
from turnmill.trajectories.base import Change


@register
class Wait(Tool):
    """Waits 100 ms, and counts."""

    name: ClassVar[str] = "wait"
    stateful: ClassVar[bool] = True

    def usage(self):
        return "wait"

    def parse(self, action):
        return action if action == "wait" else None

    async def call(self, call: ToolCall) -> ToolResult:
        await asyncio.sleep(0.1)
        number = int(call.state.get("number", b"0")) + 1
        return ToolResult(str(number), change=Change(written={"number": b"%d" % number}))
'''

STARTS = """
import subprocess, sys, time
end, count = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    subprocess.run(["bash", "-c", ":"])
    count += 1
print(count)
"""


def row(name: str, measured: Load) -> list[str]:
    figures = (f"{measured.per_second:.1f}", f"{measured.median_ms:.1f}", f"{measured.p95_ms:.1f}")
    return [name, *figures, str(measured.failures)]


def measure_latency(arguments: argparse.Namespace) -> None:
    """One client, and 16; the processor time is of the server's processes, its store among them.

    With a peer, both are measured in turns, and the medians of all rounds and of their ratios are shown.
    """
    rounds = arguments.rounds if arguments.peer else 1
    rows: list[list[str]] = []
    with serving("--tool_type", ",".join(KINDS), "--max_concurrent_requests", "256") as server:
        places = {"turnmill": (server.url, server.process.pid)}
        if arguments.peer:
            places[arguments.peer_name] = (arguments.peer, arguments.peer_process)
        for kind in KINDS:
            for clients in (1, 16):
                measured: dict[str, list[tuple[Load, float]]] = {name: [] for name in places}
                for number in range(rounds):
                    for name, (url, process) in sorted(places.items(), reverse=number % 2 == 1):
                        begun = cpu_seconds(process)
                        result = load([url], kind, clients=clients, seconds=arguments.seconds, warm=0)
                        cpu_ms = (cpu_seconds(process) - begun) / result.calls * 1000
                        measured[name].append((result, cpu_ms))
                rows += _latency_rows(f"{kind}, {clients} clients", measured)
    print(table(["", "calls/s", "median ms", "p95 ms", "failed", "CPU ms/call"], rows))


def _latency_rows(case: str, measured: dict[str, list[tuple[Load, float]]]) -> Iterator[list[str]]:
    figures = {
        name: [(r.per_second, r.median_ms, r.p95_ms, r.failures, cpu_ms) for r, cpu_ms in results]
        for name, results in measured.items()
    }
    for name, rounds in figures.items():
        per_second, median, p95, failed, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        yield [f"{case}, {name}", f"{per_second:.1f}", f"{median:.1f}", f"{p95:.1f}", f"{failed:.0f}", f"{cpu:.1f}"]
    if len(figures) > 1:
        first, second = figures.values()
        pairs = [[a / b if b else 1.0 for a, b in zip(*pair, strict=True)] for pair in zip(first, second, strict=True)]
        yield [f"{case}, ratio", *(f"{statistics.median(column):.2f}" for column in zip(*pairs, strict=True))]


def cpu_seconds(process: int | None) -> float:
    """Of a process with its descendants, those that have ended among them; 0 for none."""
    if process is None:
        return 0.0
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(process)
        return sum(sum(each.cpu_times()[:4]) for each in (found, *found.children(recursive=True)))
    return 0.0


@contextmanager
def replicas(count: int, *arguments: str, pinned: bool = False) -> Iterator[list[ServerProcess]]:
    """Servers on one store; pinned, each with its sandbox has a core."""
    with ExitStack() as stack:
        store = stack.enter_context(EmbeddedStore())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replicas-")))
        servers = []
        for index in range(count):
            options = ("--redis", store.url, "--max_concurrent_requests", "256")
            servers.append(ServerProcess(folder / f"log-{index}", *arguments, *options))
            stack.callback(servers[-1].close)
            if pinned:
                os.sched_setaffinity(servers[-1].process.pid, {index})
        yield [server.wait_until_ready() for server in servers]


def measure_replicas(arguments: argparse.Namespace) -> None:
    """Turns of a shell; a core holds a server with its sandbox and a generator of load, the store is on any.

    Two cores of one machine do not always do twice the work of one: beside the servers, in turns with them, stand
    processes that start a bash again and again and share nothing.
    """
    measured: dict[str, dict[int, list[float]]] = {"server": {1: [], 2: []}, "bash alone": {1: [], 2: []}}
    for _ in range(arguments.rounds):
        for count in (1, 2):
            measured["server"][count].append(turns_per_second(count, arguments.seconds))
            measured["bash alone"][count].append(starts_per_second(count, arguments.seconds / 2))
    rows: list[list[str]] = []
    for what, rates in measured.items():
        one, two = (statistics.median(rates[count]) for count in (1, 2))
        of_each = [second / (2 * first) for first, second in zip(rates[1], rates[2], strict=True)]
        rows.append([what, f"{one:.1f}", f"{two:.1f}", f"{statistics.median(of_each):.2f}"])
    print(table(["", "on one core, per s", "on two", "efficiency"], rows))


def turns_per_second(count: int, seconds: float) -> float:
    """Of this many servers on as many cores."""
    cores = range(count)
    # What is started from here on, the store among it, stays on these cores.
    os.sched_setaffinity(0, cores)
    with replicas(count, "--tool_type", "bash_terminal", pinned=True) as servers, ThreadPoolExecutor() as pool:
        urls = [server.url for server in servers]
        loads = [pool.submit(load, urls, "bash_terminal", clients=8, seconds=seconds, core=core) for core in cores]
        return sum(load.result().per_second for load in loads)


def starts_per_second(count: int, seconds: float) -> float:
    """Of bash, by this many processes on as many cores."""
    command = [sys.executable, "-c", STARTS, str(seconds)]
    processes = [
        subprocess.Popen(["taskset", "--cpu-list", str(core), *command], stdout=subprocess.PIPE)
        for core in range(count)
    ]
    return sum(int(process.communicate()[0]) for process in processes) / seconds


def measure_waiting(arguments: argparse.Namespace) -> None:
    """Calls that wait 100 ms; each server adds as many clients as the one before."""
    rows: list[list[str]] = []
    first = 0.0
    with tempfile.TemporaryDirectory(prefix="tools-") as tools:
        (Path(tools) / "wait.py").write_text(WAITING_TOOL)
        count = 1
        while count <= arguments.most:
            with replicas(count, "--tool_type", "wait", "--set", f"TOOLS_FOLDER={tools}") as servers:
                urls = [server.url for server in servers]
                measured = load(urls, "wait", clients=CLIENTS_PER_WAITING_SERVER * count, seconds=arguments.seconds)
            first = first or measured.per_second
            efficiency = measured.per_second / (count * first)
            rows.append([str(count), *row("", measured)[1:4], f"{efficiency:.2f}"])
            count *= 2
    print(table(["servers", "calls/s", "median ms", "p95 ms", "efficiency"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "replicas", "waiting"))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5, help="of `replicas`, and of `latency` with a peer")
    parser.add_argument("--peer", help="address of another server's /get_observation")
    parser.add_argument("--peer-name", default="verl-tool")
    parser.add_argument("--peer-process", type=int, help="its process id, for its processor time")
    parser.add_argument("--most", type=int, default=16)
    arguments = parser.parse_args()
    {"latency": measure_latency, "replicas": measure_replicas, "waiting": measure_waiting}[arguments.what](arguments)


if __name__ == "__main__":
    main()
