"""Very many calls on one server: its memory, and what is left behind when all trajectories are finished.

.venv/bin/python benchmarks/tool_server_soak.py --calls 200000
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import redis
from runs import table

from support.server_process import ServerProcess
from turnmill.trajectories.embedded import EmbeddedStore

TURNS = 10
SANDBOXED_EVERY = 50
"""Of so many trajectories one runs Python; the others only count, so that the calls are many."""

FINISHED_SECONDS = 2.0
SAMPLES = 8


def memory_mib(pid: int) -> float:
    """Return the private memory of a process, without pages shared with files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def descriptors(pid: int) -> int:
    """Open files."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def trajectory(session: aiohttp.ClientSession, url: str, number: int) -> None:
    for turn in range(TURNS):
        action = "<python>print(1)</python>" if number % SANDBOXED_EVERY == 0 else "count"
        body = {
            "trajectory_ids": [f"soak-{number}"],
            "actions": [action],
            "extra_fields": [{"call_id": str(turn)}],
            "finish": [turn == TURNS - 1],
        }
        async with session.post(url, json=body) as response:
            assert response.status == 200, await response.text()


async def run(server: ServerProcess, calls: int, clients: int) -> list[tuple[int, float, int, int]]:
    waiting = iter(range(calls // TURNS))
    samples = []

    async def client(session: aiohttp.ClientSession) -> None:
        for number in waiting:
            await trajectory(session, server.url, number)
            if (number + 1) % max(1, calls // TURNS // SAMPLES) == 0:
                pid = server.process.pid
                samples.append(((number + 1) * TURNS, memory_mib(pid), descriptors(pid), len(server.children())))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    with EmbeddedStore() as store, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        options = ["--tool_type", "python_code,base", "--redis", store.url, "--max_concurrent_requests", "256"]
        server = ServerProcess(Path(folder) / "log", *options, "--finished-seconds", str(FINISHED_SECONDS))
        try:
            server.wait_until_ready()
            begun = time.monotonic()
            samples = asyncio.run(run(server, arguments.calls, arguments.clients))
            seconds = time.monotonic() - begun
            time.sleep(FINISHED_SECONDS + 1)
            with redis.Redis.from_url(store.url, protocol=2) as client:
                keys = sum(1 for _ in client.scan_iter())
        finally:
            server.close()
    print(table(["calls", "memory MiB", "descriptors", "processes"], [[c, f"{m:.1f}", d, p] for c, m, d, p in samples]))
    growth = samples[-1][1] / samples[0][1] - 1
    print(f"\n{arguments.calls} calls in {seconds:.0f} s; memory {growth:+.1%}; keys left: {keys}")
    return int(abs(growth) > 0.1 or keys > 0)


if __name__ == "__main__":
    sys.exit(main())
