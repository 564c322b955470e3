"""How many scripts a second a cluster of two primaries runs, beside a store of one.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/store_primaries.py [--rounds 5] [--seconds 8]

Needs `redis-benchmark` (Debian: redis-tools), which asks in C: clients in Python would be slower than one server. Each
server has a core of its own, which it shares with a part of the clients. In each round both are asked, one after the
other; the script is the one that begins a call, for as many trajectories as there are requests.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from runs import table

from support.store_cluster import StoreCluster, store_cluster
from turnmill.trajectories.store import BEGIN

CLIENTS, PIPELINE = 32, 8
KEY = "turnmill:run:trajectory:{tag}:__rand_int__"
"""`{tag}` becomes a key of each slot in turn."""


async def main() -> None:
    """Print the scripts a second of each round, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    if shutil.which("redis-benchmark") is None:
        sys.exit("redis-benchmark is missing: install redis-tools")
    async with store_cluster(primaries=1) as one, store_cluster(primaries=2) as two:
        for cluster in (one, two):
            await prepare(cluster)
        rates: dict[str, list[float]] = {"one primary": [], "two primaries": []}
        for _ in range(options.rounds):
            for name, cluster in (("one primary", one), ("two primaries", two)):
                rates[name].append(await asyncio.to_thread(scripts_per_second, cluster, options.seconds))
                for node in cluster.nodes:
                    await node.execute("FLUSHALL")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    rows = [(name, f"{medians[name]:,.0f}", f"{min(found):,.0f} to {max(found):,.0f}") for name, found in rates.items()]
    print(table(("store", "scripts/s", "range"), rows))
    print(f"\n{medians['two primaries'] / medians['one primary']:.2f} times")


async def prepare(cluster: StoreCluster) -> None:
    """Give each server a core, and the script."""
    cores = sorted(os.sched_getaffinity(0))
    for node, core in zip(cluster.nodes, cores, strict=False):
        os.sched_setaffinity(node.pid, {core})
        await node.execute("SCRIPT", "LOAD", BEGIN.source)


def scripts_per_second(cluster: StoreCluster, seconds: float) -> float:
    """Ask for about so many seconds."""
    probe = ask(cluster, 20_000)
    num_requests = max(20_000, round(20_000 / probe * seconds))
    return num_requests / ask(cluster, num_requests)


def ask(cluster: StoreCluster, num_requests: int) -> float:
    """Return the seconds that so many requests took."""
    arguments = ["shell", "1", "c0", "1", "1500000", "0123456789abcdef", "0", "86400000", "", "", "", ""]
    command = [
        *("redis-benchmark", "-p", str(cluster.nodes[0].port), "-c", str(CLIENTS), "-P", str(PIPELINE)),
        # It takes a cluster of one node for an error.
        *(["--cluster"] if len(cluster.nodes) > 1 else []),
        *("-n", str(num_requests), "-r", str(10**12), "-q", "--threads", "2"),
        *("EVALSHA", BEGIN.digest, "3", KEY, f"{KEY}:calls", f"{KEY}:state:shell", *arguments),
    ]
    begun = time.monotonic()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = finished.stdout + finished.stderr
    if finished.returncode or "rror" in printed:
        raise RuntimeError(printed)
    return time.monotonic() - begun


if __name__ == "__main__":
    asyncio.run(main())
