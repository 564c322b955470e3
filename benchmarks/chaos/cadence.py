"""Runs into which faults come again and again, each round after an undisturbed one of as many steps."""

import argparse
import itertools
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from chaos.containment import RUNS, BenchmarkError, contained
from chaos.faults import UNDISTURBED
from chaos.measures import Record, lost_seconds, measure, own_ettr, window
from chaos.result import CADENCE_RESULTS, CadenceResult
from chaos.systems import system
from results_file import append_result, present_commit

STEPS = 250
"""Ten minutes undisturbed on two cores: ten faults of which one comes a minute."""

LONGEST_SECONDS = 3600.0


def run_all(options: argparse.Namespace) -> None:
    """Run each system undisturbed, and then at each cadence with each group of faults; again in each round."""
    commit = present_commit()
    for name in options.systems:
        system(name).prepare(RUNS)
        for number in range(options.rounds):
            calm = contained(name, UNDISTURBED, 0, options, every=0.0)
            if calm.exit_code != 0:
                sys.exit(f"{name} does not train undisturbed: see {RUNS / name}")
            for every, group, seed in itertools.product(options.every, options.groups, options.seeds):
                try:
                    record = contained(name, group, seed, options, every=every)
                except BenchmarkError as error:
                    print(f"{name}, {group} every {every:g} s, seed {seed}: {error}", file=sys.stderr, flush=True)
                    continue
                result = result_of(name, group, every, seed, number, record, calm, options, commit)
                append_result(CADENCE_RESULTS, result)
                print(json.dumps(asdict(result)), flush=True)


def result_of(
    name: str,
    group: str,
    every: float,
    seed: int,
    number: int,
    record: Record,
    calm: Record,
    options: argparse.Namespace,
    commit: str,
) -> CadenceResult:
    """Return the result of a run."""
    lost = lost_seconds(record, calm)
    return CadenceResult(
        **asdict(measure(record, calm, steps=options.steps, hang_seconds=options.hang_seconds)),
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        system=name,
        version=system(name).version(),
        fault=group,
        seed=seed,
        every=every,
        round=number,
        own_ettr=_rounded(own_ettr(record, options.steps)),
        undisturbed_seconds=round(window(calm), 1),
        undisturbed_own_ettr=_rounded(own_ettr(calm, options.steps)),
        injected=[(kind, round(seconds, 1)) for kind, seconds in zip(record.kinds, lost, strict=True)],
    )


def _rounded(ettr: float | None) -> float | None:
    return None if ettr is None else round(ettr, 4)
