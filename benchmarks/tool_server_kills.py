"""Many trajectories on two tool servers, one of which is killed every few seconds; beside it, the same undisturbed.

.venv/bin/python benchmarks/tool_server_kills.py --trajectories 1000 --turns 10 --kill-every 5
"""

import argparse
import asyncio
import hashlib
import itertools
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from runs import table

from support.server_process import ServerProcess
from turnmill.trajectories.embedded import EmbeddedStore

PORTS = (18561, 18562)
CALL_SECONDS = 120.0
ANSWER_SECONDS = 30.0


@dataclass
class Servers:
    """Servers on fixed ports; a killed one comes back by itself."""

    processes: list[ServerProcess]
    arguments: tuple[str, ...]
    folder: Path
    deaths: list[tuple[float, int]] = field(default_factory=list)
    """When, and which."""

    async def kill_regularly(self, seconds: float) -> None:
        """Kill one after the other, and start each again."""
        for index in itertools.cycle(range(len(self.processes))):
            await asyncio.sleep(seconds)
            self.deaths.append((time.perf_counter(), index))
            self.processes[index].process.kill()
            await asyncio.to_thread(self.processes[index].process.wait)
            self.processes[index] = self.start(index)

    def start(self, index: int) -> ServerProcess:
        """Start one on its port."""
        log = self.folder / f"server-{index}-{len(self.deaths)}.log"
        return ServerProcess(log, *self.arguments, "--port", str(PORTS[index]))


@dataclass
class Outcome:
    """Outcomes of the trajectories."""

    digests: dict[int, str] = field(default_factory=dict)
    lost: int = 0
    repeated: int = 0
    retries: int = 0
    sent: list[tuple[int, float, float, bool]] = field(default_factory=list)
    """Server first asked, begin and end of each call, whether it was asked again."""

    seconds: float = 0.0


def action(turn: int) -> str:
    """Leaves a line for each time it takes effect, and shows all that it builds on."""
    return (
        f"<bash>echo {turn} >> effects; export SEEN=$SEEN,{turn}; mkdir -p d{turn}; cd d{turn}; pwd | sed s:.*/d0:d0:; "
        f"echo $SEEN; wc -l < ~/effects</bash>"
    )


async def run_trajectory(session: aiohttp.ClientSession, number: int, turns: int, outcome: Outcome) -> None:
    digest = hashlib.sha256()
    for turn in range(turns):
        observation = await call(session, number, turn, action(turn), outcome)
        if observation is None:
            outcome.lost += 1
            continue
        digest.update(observation.encode())
        lines = re.findall(r"^(\d+)$", observation, re.MULTILINE)
        outcome.repeated += max(0, int(lines[-1]) - (turn + 1)) if lines else 0
    outcome.digests[number] = digest.hexdigest()


async def call(session: aiohttp.ClientSession, number: int, turn: int, text: str, outcome: Outcome) -> str | None:
    """One call, sent again to the other server until it is answered."""
    body: dict[str, Any] = {
        "trajectory_ids": [f"trajectory-{number}"],
        "actions": [text],
        "extra_fields": [{"call_id": str(turn)}],
    }
    begun = time.perf_counter()
    for attempt in itertools.count():
        first = (number + turn) % len(PORTS)
        port = PORTS[(first + attempt) % len(PORTS)]
        try:
            url = f"http://127.0.0.1:{port}/get_observation"
            async with session.post(url, json=body) as response:
                if response.status == 200:
                    answer = await response.json()
                    outcome.sent.append((first, begun, time.perf_counter(), attempt > 0))
                    return str(answer["observations"][0])
        except (aiohttp.ClientError, TimeoutError):
            pass
        outcome.retries += 1
        if time.perf_counter() - begun > CALL_SECONDS:
            return None
        await asyncio.sleep(min(0.02 * 2**attempt, 0.2))
    raise AssertionError("the loop has no end of its own")


async def run_all(servers: Servers, trajectories: int, turns: int, clients: int, kill_every: float | None) -> Outcome:
    outcome = Outcome()
    waiting = iter(range(trajectories))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in waiting:
            await run_trajectory(session, number, turns, outcome)

    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    begun = time.perf_counter()
    killer = asyncio.create_task(servers.kill_regularly(kill_every)) if kill_every else None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    outcome.seconds = time.perf_counter() - begun
    if killer is not None:
        killer.cancel()
    return outcome


def measure(arguments: argparse.Namespace, kill_every: float | None) -> tuple[Outcome, Servers]:
    with EmbeddedStore() as store, tempfile.TemporaryDirectory(prefix="tool-server-kills-") as folder:
        options = ("--tool_type", "bash_terminal", "--redis", store.url, "--max_concurrent_requests", "256")
        servers = Servers([], options, Path(folder))
        servers.processes = [servers.start(index) for index in range(len(PORTS))]
        try:
            for server in servers.processes:
                server.wait_until_ready()
            outcome = asyncio.run(
                run_all(servers, arguments.trajectories, arguments.turns, arguments.clients, kill_every)
            )
        finally:
            for server in servers.processes:
                server.close()
    return outcome, servers


def after_death(outcome: Outcome, servers: Servers) -> list[float]:
    """For every call in flight at a server that died: seconds from its death to the observation."""
    return [
        end - died
        for died, index in servers.deaths
        for first, begun, end, again in outcome.sent
        if again and first == index and begun <= died <= end
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()

    calm, _ = measure(arguments, None)
    killed, servers = measure(arguments, arguments.kill_every)
    waits = sorted(after_death(killed, servers))
    other = sum(killed.digests[number] != digest for number, digest in calm.digests.items())
    p95 = f"{waits[int(len(waits) * 0.95)]:.2f}" if waits else "none"
    median = f"{statistics.median(waits):.2f}" if waits else "none"
    print(
        table(
            ["", "undisturbed", "killed"],
            [
                ["trajectories x turns", *[f"{arguments.trajectories} x {arguments.turns}"] * 2],
                ["seconds", f"{calm.seconds:.0f}", f"{killed.seconds:.0f}"],
                ["servers killed", "0", str(len(servers.deaths))],
                ["calls sent again", str(calm.retries), str(killed.retries)],
                ["lost turns", str(calm.lost), str(killed.lost)],
                ["repeated effects", str(calm.repeated), str(killed.repeated)],
                ["digests that differ", "", str(other)],
                ["calls in flight at a death", "0", str(len(waits))],
                ["death to observation, median s", "", median],
                ["death to observation, p95 s", "", p95],
            ],
        )
    )
    return int(bool(killed.lost or killed.repeated or other))


if __name__ == "__main__":
    sys.exit(main())
