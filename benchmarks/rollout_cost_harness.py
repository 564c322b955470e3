"""How a system is measured for `rollout_cost.py`, by an interpreter that has it.

It is all of the standard library: the interpreters of other systems have neither turnmill nor verl. A script gives
`main` what it measures, by name: which of the canned responses, and a function that prepares a system and returns the
coroutine function that plays one trajectory.
"""

import argparse
import asyncio
import cProfile
import hashlib
import itertools
import json
import math
import random
import resource
import statistics
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

RESPONSE_TOKENS, OBSERVATION_TOKENS, NUM_RESPONSES = 200, 64, 32
ENDED, CUT, QWEN3 = range(3)
"""Canned responses: calls that end with a token of their own, that end where a call does, and in tokens of Qwen3."""

TICK_SECONDS = 0.005
KIB, MIB = 2**10, 2**20

# ---- the engine ----


class Response(NamedTuple):
    """One of the canned responses."""

    kind: str
    """`calls`, or `answers`, which end an episode."""

    number: int
    """Which of its kind."""

    ids: "array[int]"


class Engine:
    """An engine that has an answer for every turn of every trajectory."""

    def __init__(self, canned: Mapping[str, Sequence[Sequence[int]]], turns: int, delay: float) -> None:
        self.emitted: dict[str, bytearray] = defaultdict(bytearray)
        """All tokens of a trajectory, packed."""

        self.turns = turns
        self._ids = {kind: [array("i", ids) for ids in canned[kind]] for kind in ("calls", "answers")}
        self._random = random.Random(0)
        self._log_probs = array("d", (-self._random.random() for _ in range(RESPONSE_TOKENS)))
        self._delay = delay

    def num_responses(self, name: str) -> int:
        """Return how many a trajectory has got."""
        return len(self.emitted[name]) // (4 * RESPONSE_TOKENS)

    def response(self, turn: int) -> Response:
        """Return what every trajectory gets at a turn."""
        kind = "calls" if turn + 1 < self.turns else "answers"
        number = turn % len(self._ids[kind])
        return Response(kind, number, self._ids[kind][number])

    def log_probs(self) -> list[float]:
        """Return those of a response, in objects of its own."""
        return self._log_probs.tolist()

    async def respond(self, name: str) -> Response:
        """Return the next response of a trajectory."""
        await asyncio.sleep(self._random.uniform(0, self._delay) if self._delay else 0)
        response = self.response(self.num_responses(name))
        self.emitted[name] += response.ids.tobytes()
        return response


# ---- what is measured ----


@dataclass
class Played:
    """The rows of a trajectory: prompt, response, mask and log-probs of each."""

    rows: list[tuple["array[int]", "array[int]", "array[int]", "array[float]"]] = field(default_factory=list)

    def add(
        self, prompt: Sequence[int], response: Sequence[int], mask: Sequence[int], log_probs: Sequence[float]
    ) -> None:
        """Add a row."""
        self.rows.append((array("i", prompt), array("i", response), array("i", mask), array("d", log_probs)))


Play = Callable[[int], Awaitable[Played]]


class Apart(NamedTuple):
    """A system that works in other processes: memory, lag and times of trajectories are not measured."""

    play: Play
    cpu_seconds: Callable[[], float]
    collect: Callable[[], None]
    """Fills the rows of what has been played, and what the engine has emitted."""


class Player(NamedTuple):
    """A system: its canned responses, and what prepares it from engine, folder of the model and an empty one."""

    canned: int
    prepare: Callable[[Engine, Path, Path], Play | Apart]
    has_rows: bool = True


def name_of(number: int) -> str:
    """Return the name of a trajectory, for systems that let one choose it."""
    return f"trajectory-{number}"


def main(players: Mapping[str, Player]) -> None:
    """Measure one of the systems at one size, and print what it took as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("system", choices=players)
    parser.add_argument("size")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    trajectories, turns = map(int, given.size.split("x"))
    player = players[given.system]
    engine = Engine(json.loads((given.folder / "canned.json").read_text())[player.canned], turns, given.delay)
    with tempfile.TemporaryDirectory(dir=given.folder) as run_dir:

        async def prepare_and_measure() -> dict[str, Any]:
            prepared = player.prepare(engine, given.folder, Path(run_dir))
            at_once = given.at_once or trajectories
            return await measure(
                prepared, engine, trajectories, at_once=at_once, has_rows=player.has_rows, profile=given.profile
            )

        found = asyncio.run(prepare_and_measure())
        written = sum(path.stat().st_size for path in Path(run_dir).rglob("*") if path.is_file())
        found["kib_written_per_trajectory"] = written / KIB / trajectories
    print(json.dumps(found))


async def measure(
    prepared: Play | Apart, engine: Engine, trajectories: int, *, at_once: int, has_rows: bool, profile: Path | None
) -> dict[str, Any]:
    """Play all trajectories; return what they took, and what is wrong with their rows."""
    apart = prepared if isinstance(prepared, Apart) else None
    play, seconds_of_cpu = (prepared, _cpu_seconds) if apart is None else (apart.play, apart.cpu_seconds)
    # Imports and caches of the first trajectory are no cost of a turn.
    await play(trajectories)
    if apart is not None:
        apart.collect()
    engine.emitted.clear()
    _reset_peak()
    before_bytes = _status("VmRSS")
    started, started_cpu = time.monotonic(), seconds_of_cpu()
    with cProfile.Profile(time.thread_time) if profile else nullcontext() as profiler:
        episodes, lags, durations = await _play_all(play, trajectories, at_once)
    cpu_seconds, seconds = seconds_of_cpu() - started_cpu, time.monotonic() - started
    peak_bytes = _status("VmHWM")
    if profile and profiler:
        profiler.dump_stats(profile)
    if apart is not None:
        apart.collect()
    num_turns = sum(engine.num_responses(name) for name in engine.emitted)
    return {
        "turns_per_cpu_second": num_turns / cpu_seconds,
        "cpu_ms_per_turn": 1000 * cpu_seconds / num_turns,
        "turns_per_second": num_turns / seconds,
        "trajectory_p50_s": math.nan if apart else _percentile(durations, 50),
        "trajectory_p99_s": math.nan if apart else _percentile(durations, 99),
        "lag_p99_ms": math.nan if apart else 1000 * _percentile(lags, 99),
        "memory_mib": math.nan if apart else (peak_bytes - before_bytes) / MIB,
        "missing_turns": trajectories * engine.turns - num_turns,
        "foreign_tokens": _foreign_tokens(episodes, engine) if has_rows else 0,
        "digest": _digest(episodes),
    }


async def _play_all(play: Play, trajectories: int, at_once: int) -> tuple[list[Played], list[float], list[float]]:
    """Return what was played, how late the loop reached its timers, and the seconds of each trajectory."""
    lags: list[float] = []
    durations: list[float] = []
    ticking = asyncio.create_task(_tick(lags))
    limit = asyncio.Semaphore(at_once)

    async def limited(number: int) -> Played:
        async with limit:
            began = time.monotonic()
            played = await play(number)
        durations.append(time.monotonic() - began)
        return played

    episodes = await asyncio.gather(*(limited(number) for number in range(trajectories)))
    ticking.cancel()
    return list(episodes), lags, durations


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else sum(values)


async def _tick(lags: list[float]) -> None:
    """Add how late each of the times that are `TICK_SECONDS` apart is reached, also those that are missed."""
    due = time.monotonic() + TICK_SECONDS
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        while due <= now:
            lags.append(now - due)
            due += TICK_SECONDS


# ---- checks ----


def _foreign_tokens(episodes: Sequence[Played], engine: Engine) -> int:
    """Count the trained tokens that the engine did not emit for the same trajectory, and those it emitted besides."""
    emitted = sorted(bytes(packed) for packed in engine.emitted.values())
    trained = sorted(_trained(played) for played in episodes)
    return sum(abs(len(one) - len(other)) // 4 + (one != other) for one, other in zip(emitted, trained, strict=True))


def _trained(played: Played) -> bytes:
    return b"".join(array("i", itertools.compress(ids, mask)).tobytes() for _, ids, mask, _ in played.rows)


def _digest(episodes: Sequence[Played]) -> str:
    digest = hashlib.sha256()
    for played in episodes:
        for row in played.rows:
            for values in row:
                digest.update(values)
    return digest.hexdigest()


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
