"""Loads tool servers from a process apart.

    python benchmarks/tool_servers.py '{"urls": [...], "kind": "python_code", "clients": 16, "seconds": 5}'

is the load generator; it prints one JSON object.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.server_process import ServerProcess

ACTIONS: dict[str, Callable[[int], str]] = {
    "python_code": lambda turn: f"<python>print({turn} + 1)</python>",
    "bash_terminal": lambda turn: f"<bash>echo {turn} >> log; export TURN={turn}; echo $TURN</bash>",
    "wait": lambda turn: "wait",
}


@dataclass(frozen=True)
class Load:
    """Result of one load."""

    calls: int
    seconds: float
    median_ms: float
    p95_ms: float
    failures: int

    @property
    def per_second(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


@contextmanager
def serving(*arguments: str) -> Iterator[ServerProcess]:
    """A server for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="tool-server-") as folder:
        server = ServerProcess(Path(folder) / "log", *arguments)
        try:
            yield server.wait_until_ready()
        finally:
            server.close()


def load(
    urls: Sequence[str],
    kind: str,
    *,
    clients: int,
    seconds: float = 5.0,
    call_ids: bool = True,
    warm: float = 1.0,
    core: int | None = None,
) -> Load:
    """Load servers from another process; each client has a trajectory of its own and takes any server, call by call."""
    what = {"urls": list(urls), "kind": kind, "clients": clients, "seconds": seconds, "warm": warm}
    held = [] if core is None else ["taskset", "--cpu-list", str(core)]
    command = [*held, sys.executable, __file__, json.dumps(what | {"call_ids": call_ids})]
    return Load(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


async def _generate(what: dict[str, Any]) -> Load:
    import aiohttp

    latencies: list[float] = []
    failures = 0
    action = ACTIONS[what["kind"]]
    name = f"load-{os.getpid()}"

    async def client(session: aiohttp.ClientSession, number: int, begin: float, end: float) -> None:
        nonlocal failures
        turn = 0
        # In turn, clients that once wait for the same server would go on to the next one together for good.
        order = random.Random(number)
        while (begun := time.perf_counter()) < end:
            url = order.choice(what["urls"])
            extra = {"call_id": str(turn)} if what["call_ids"] else {}
            body = {"trajectory_ids": [f"{name}-{number}"], "actions": [action(turn)], "extra_fields": [extra]}
            async with session.post(url, json=body) as response:
                answer = await response.json()
            turn += 1
            if begun >= begin:
                latencies.append(time.perf_counter() - begun)
                failures += response.status != 200 or not answer["valids"][0]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begin = time.perf_counter() + what["warm"]
        end = begin + what["seconds"]
        await asyncio.gather(*(client(session, number, begin, end) for number in range(what["clients"])))
        seconds = time.perf_counter() - begin
    latencies.sort()
    median, p95 = statistics.median(latencies), latencies[int(len(latencies) * 0.95)]
    return Load(len(latencies), seconds, median * 1000, p95 * 1000, failures)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_generate(json.loads(sys.argv[1]))))))
