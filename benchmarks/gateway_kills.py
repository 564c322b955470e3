"""Conversations at a gateway with two workers, one of which is killed every few seconds, and the same undisturbed.

.venv/bin/python benchmarks/gateway_kills.py --trajectories 1000 --turns 10 --kill-every 5
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from runs import table

from support.gateway_process import GatewayProcess, ScriptedVllm
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

ENGINE_SECONDS = 0.1
REQUEST_SECONDS = 60.0
RETRY_SECONDS = 0.05


@dataclass
class Outcome:
    """What the clients saw."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    """The answers of each trajectory."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from each request of a trajectory to its answer, whatever it took to get it."""

    lost: int = 0
    repeats: int = 0
    deaths: int = 0
    seconds: float = 0.0

    @property
    def longest(self) -> list[float]:
        """The longest wait of each trajectory, in seconds."""
        return sorted(max(waits) for waits in self.waits.values())


async def play(client: httpx.AsyncClient, name: str, turns: int, outcome: Outcome) -> None:
    """Hold a conversation; a request that breaks is sent again."""
    messages = [{"role": "user", "content": f"This is conversation {name}. What is it?"}]
    for turn in range(turns):
        begun = time.perf_counter()
        answer = await ask(client, name, messages, outcome)
        if answer is None:
            outcome.lost += 1
            return
        outcome.waits.setdefault(name, []).append(time.perf_counter() - begun)
        outcome.answers.setdefault(name, []).append(answer)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And then, after {turn}?"}]


async def ask(client: httpx.AsyncClient, name: str, messages: list[dict[str, str]], outcome: Outcome) -> str | None:
    """Return the text of the answer; None if there is none within the time."""
    end = time.perf_counter() + REQUEST_SECONDS
    while time.perf_counter() < end:
        try:
            response = await client.post(f"/{name}/v1/chat/completions", json={"messages": messages})
        except httpx.TransportError:
            pass
        else:
            if response.status_code == 200:
                return str(response.json()["choices"][0]["message"]["content"])
        outcome.repeats += 1
        await asyncio.sleep(RETRY_SECONDS)
    return None


async def kill_regularly(gateway: GatewayProcess, seconds: float, outcome: Outcome) -> None:
    """Kill the worker that has lived longest."""
    while True:
        await asyncio.sleep(seconds)
        if workers := gateway.workers():
            min(workers, key=lambda worker: worker.create_time()).kill()
            outcome.deaths += 1


async def run_all(
    gateway: GatewayProcess, trajectories: int, turns: int, clients: int, kill_every: float | None
) -> Outcome:
    """Play all trajectories, so many at a time."""
    outcome = Outcome()
    names = (f"t{number}" for number in range(trajectories))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    begun = time.perf_counter()
    killing = asyncio.create_task(kill_regularly(gateway, kill_every, outcome)) if kill_every else None
    async with httpx.AsyncClient(base_url=gateway.url, timeout=REQUEST_SECONDS, limits=limits) as client:

        async def work() -> None:
            for name in names:
                await play(client, name, turns, outcome)

        await asyncio.gather(*(work() for _ in range(clients)))
    if killing is not None:
        killing.cancel()
    outcome.seconds = time.perf_counter() - begun
    return outcome


@dataclass(frozen=True)
class Checked:
    """What the store and the engine say."""

    unlike: int
    """Answers that are recorded otherwise than a client got them, or not at all."""

    recorded_twice: int
    branches: int
    sampled_again: int
    """Answers that the engine gave although another was recorded, as its worker had been killed."""


async def check(store: EmbeddedStore, run: str, outcome: Outcome, engine: ScriptedVllm) -> Checked:
    """Compare what clients got with what is recorded and what was sampled."""
    journal = TrajectoryJournal.from_url(store.url, run)
    unlike = twice = branches = 0
    for name, answers in outcome.answers.items():
        found = await journal.read(name, deadline=deadline_in(30))
        turns = found.turns if found is not None else ()
        texts = [turn.response_text.removesuffix("<|im_end|>") for turn in turns]
        unlike += sum(mine != stored for mine, stored in itertools.zip_longest(answers, texts))
        twice += max(0, len(texts) - len(answers))
        branches += sum(turn.metrics["parent"] != number - 1 for number, turn in enumerate(turns))
    await journal.close()
    again = sum(count - 1 for count in Counter(engine.prompts).values())
    return Checked(unlike, twice, branches, again)


async def measure(arguments: argparse.Namespace, kill_every: float | None) -> list[str]:
    """Play once; return a row of the table."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore() as store:
        async with ScriptedVllm(lambda prompt: f"answer {next(numbers)}", seconds=ENGINE_SECONDS) as engine:
            gateway = GatewayProcess(Path(folder), engine.url, "--redis", store.url, "--workers", "2")
            try:
                await gateway.ready()
                outcome = await run_all(gateway, arguments.trajectories, arguments.turns, arguments.clients, kill_every)
                checked = await check(store, "gateway", outcome, engine)
            finally:
                gateway.close()
    longest = outcome.longest
    return [
        str(outcome.deaths),
        str(sum(map(len, outcome.answers.values()))),
        str(outcome.lost),
        str(checked.unlike),
        str(checked.recorded_twice),
        str(checked.branches),
        str(checked.sampled_again),
        str(outcome.repeats),
        f"{statistics.median(longest):.2f}",
        f"{longest[int(0.95 * len(longest))]:.2f}",
        f"{longest[-1]:.2f}",
        f"{outcome.seconds:.0f}",
    ]


def main() -> None:
    """Measure with deaths and without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--clients", type=int, default=32, help="conversations at a time")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds")
    arguments = parser.parse_args()
    heads = ["deaths", "turns", "lost", "recorded otherwise", "recorded twice", "branches", "sampled again",
             "repeats of clients", "longest wait: median s", "p95 s", "most s", "all s"]  # fmt: skip
    rows = [asyncio.run(measure(arguments, each)) for each in (arguments.kill_every, None)]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
