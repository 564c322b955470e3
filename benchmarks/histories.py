"""Histories of calls with faults of servers, network, store and clock, checked for linearizability.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/histories.py [--seeds 50] [--operations 10000] [--sabotage fencing]
    [--cluster]

Prints a table, and exits with 1 if a history has a violation or a call hangs. With `--sabotage` a guarantee of the
store is broken on purpose: the first seed that finds it ends the program, and 1 is its exit code if none does. With
`--cluster` the store has three primaries, each with a replica, and the faults are of its nodes.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from runs import table

from support.cluster_histories import ClusterHistory
from support.history_checker import violations
from support.store_histories import SABOTAGES, StoreHistory, changed_scripts


def main() -> None:
    """Print a table of all seeds together, and every violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--sabotage", choices=SABOTAGES)
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    operations, answered, turns, bad = 0, 0, 0, 0
    faults: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    kind = ClusterHistory if options.cluster else StoreHistory
    with changed_scripts(options.sabotage, steps_clock=not options.cluster):
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            history = asyncio.run(kind(seed).play(options.operations))
            found = [*violations(history.operations), *history.problems, *(f"{call} hangs" for call in history.hung)]
            for problem in found:
                print(f"seed {seed}: {problem}", flush=True)
            operations += len(history.operations)
            answered += sum(each.seen is not None for each in history.operations)
            turns += history.num_turns
            faults += history.faults
            ended += history.ended
            bad += bool(found)
            if found and options.sabotage:
                print(f"{options.sabotage}: found by seed {seed}")
                return
    rows = [
        ("seeds", options.seeds),
        ("operations", operations),
        ("answered", answered),
        ("turns of journals", turns),
        ("seeds with violations", bad),
    ]
    rows += [(f"fault: {name.replace('_', ' ')}", count) for name, count in sorted(faults.items())]
    rows += [(f"trajectories: {name}", count) for name, count in sorted(ended.items())]
    print(table(("what", "number"), rows))
    sys.exit(bool(bad) or options.sabotage is not None)


if __name__ == "__main__":
    main()
