"""Environments: steps a second on one core, and any text at all as a response.

python benchmarks/environments.py speed            # a table of all
python benchmarks/environments.py fuzz --strings 100000
"""

import argparse
import random
import statistics
import time
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnmill.environments import Environment, create
from turnmill.testing.environment_fuzz import KINDS, Kind, give, make, responses

BARS = {"babyai": 4_000, "sokoban": 20_000, "babaisai": 5_000, "tetris": 20_000, "crafter": 400}
"""Steps a second that are asked of a core, text included."""

MEASURED = (
    Kind("babyai", "goto"),
    Kind("babyai", "GoToLocal"),
    Kind("sokoban"),
    Kind("sokoban", options={"size": [8, 8], "searchDepth": 30}),
    Kind("tetris"),
    Kind("blocksworld"),
    Kind("babaisai", "goto_win"),
    Kind("babaisai", "two_room-break_stop-make_win-distr_obj_rule"),
    Kind("crafter"),
    Kind("webshop"),
    Kind("bird"),
    Kind("maths", "gsm8k"),
)
_OPEN_ACTIONS = {
    "webshop": ("search[tent]", "search[red scarf]"),
    "bird": ("```sql\nSELECT title FROM book WHERE year > 1990\n```",),
    "maths": ("12", "the answer is 89"),
}
_MAX_TURNS = 64
PER_EPISODE = 20
"""Random strings that are given one after the other."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Time taken by one pass."""

    steps_per_second: float
    with_resets: float
    reset_ms: float


def measure(kind: Kind, seconds: float) -> Measured:
    """Play at random in one process, text observations included; seconds are those that a core spent on it."""
    environment = create(kind.name, kind.task, _MAX_TURNS, kind.options)
    actions = environment.actions or _OPEN_ACTIONS[kind.name]
    chance = random.Random(0)
    num_steps, stepping, resets = 0, 0.0, []
    while stepping < seconds:
        started = time.process_time()
        environment.reset(len(resets))
        resets.append(time.process_time() - started)
        started = time.process_time()
        num_steps += _play(environment, actions, chance)
        stepping += time.process_time() - started
    # Of the first reset the import of libraries is a part.
    return Measured(num_steps / stepping, num_steps / (stepping + sum(resets[1:])), 1000 * statistics.median(resets))


def _play(environment: Environment, actions: tuple[str, ...], chance: random.Random) -> int:
    for turn in range(_MAX_TURNS):
        action = environment.match_action(chance.choice(actions))
        result = environment.step(environment.default_action if action is None else action)
        if result.terminated or result.truncated:
            return turn + 1
    return _MAX_TURNS


def speed(seconds: float, passes: int) -> None:
    """Print the table: the best of a few passes, for other work disturbs and never helps."""
    print("| environment | steps/s | asked | with resets | reset ms |\n| --- | --- | --- | --- | --- |")
    for kind in MEASURED:
        best = max((measure(kind, seconds) for _ in range(passes)), key=lambda one: one.steps_per_second)
        options = ", ".join(f"{name} {value}" for name, value in kind.options.items())
        asked = f"{BARS[kind.name]:,}" if kind.name in BARS else ""
        name = f"`{kind.name}`" + (f" {kind.task}" if kind.task else "") + (f" ({options})" if options else "")
        print(
            f"| {name} | {best.steps_per_second:,.0f} | {asked} | {best.with_resets:,.0f} | {best.reset_ms:.2f} |",
            flush=True,
        )


def fuzz(num_strings: int) -> None:
    """Give every environment its share of the strings; raises where one does not bear it."""
    print("| environment | strings | seconds | longest |\n| --- | --- | --- | --- |")
    for kind in KINDS:
        started = time.perf_counter()
        num_given, longest = _fuzz_one(kind, num_strings // len(KINDS))
        seconds = time.perf_counter() - started
        print(f"| {kind} | {num_given:,} | {seconds:.0f} | {longest:.2f} s for {PER_EPISODE} |", flush=True)


def _fuzz_one(kind: Kind, num_strings: int) -> tuple[int, float]:
    """Number of strings, and the longest time that `PER_EPISODE` of them took."""
    episode = make(kind)
    took: list[float] = []

    @settings(
        max_examples=-(-num_strings // PER_EPISODE),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 2**31 - 1),
        texts=st.lists(responses(episode.environment.actions), min_size=PER_EPISODE, max_size=PER_EPISODE),
    )
    def check(seed: int, texts: list[str]) -> None:
        started = time.perf_counter()
        give(episode, seed, texts)
        took.append(time.perf_counter() - started)

    check()
    return len(took) * PER_EPISODE, max(took)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed_command = commands.add_parser("speed")
    speed_command.add_argument("--seconds", type=float, default=1.0)
    speed_command.add_argument("--passes", type=int, default=3)
    fuzz_command = commands.add_parser("fuzz")
    fuzz_command.add_argument("--strings", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.command == "speed":
        speed(arguments.seconds, arguments.passes)
    else:
        fuzz(arguments.strings)


if __name__ == "__main__":
    main()
