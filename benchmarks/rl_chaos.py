"""Trains the same tiny model undisturbed and with one fault per run, and says what each fault cost which system.

.venv/bin/python benchmarks/rl_chaos.py run [--systems NAME...] [--faults NAME...] [--seeds NUMBER...]
.venv/bin/python benchmarks/rl_chaos.py cadence [--every SECONDS...] [--groups all|around|centre|NAME...] [--steps N]
.venv/bin/python benchmarks/rl_chaos.py page

`run` adds a line for each run to `benchmarks/results/chaos.jsonl`, and `page` writes `docs/chaos.md` and its pictures
from them. `cadence` injects fault after fault into one run, of a group of kinds, and adds its lines to
`benchmarks/results/chaos_cadence.jsonl`; each round of them begins with an undisturbed run of as many steps. Each run
has namespaces of its own (processes, mounts, network, IPC), which needs Linux and the right to make them: what injures
a run cannot reach anything else. A fault's moment follows from its name, the seed, and the length of an undisturbed
run, which comes first. `--faults` and `--groups` take the beginnings of names.
"""

import argparse
import itertools
import json
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from chaos import cadence, page
from chaos.containment import RUNS, BenchmarkError, contained
from chaos.faults import ALL, AROUND, NAMES, UNDISTURBED, moment
from chaos.measures import Measured, Record, measure, window
from chaos.result import RESULTS, Result, latest
from chaos.systems import MODULES, STEPS, faults_of, system
from results_file import append_result, present_commit

HANG_SECONDS, LONGEST_SECONDS = 300.0, 1500.0
MOMENT_PARTS = (1.0, 0.5, 0.25)
SUBSET = ("kill trainer", "kill agent loop", "kill tool server", "stop store", "calls fail")
"""What `make chaos` injects into turnmill and plain verl, within half an hour on two cores."""


def main() -> None:
    """Run systems with faults, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("--systems", nargs="+", default=["turnmill"], choices=MODULES)
    run.add_argument("--faults", nargs="+", default=[""])
    run.add_argument("--subset", action="store_true", help="only the faults of `make chaos`")
    run.add_argument("--seeds", nargs="+", type=int, default=[0])
    run.add_argument("--steps", type=int, default=STEPS)
    run.add_argument("--hang-seconds", type=float, default=HANG_SECONDS)
    run.add_argument("--longest", type=float, default=LONGEST_SECONDS)
    run.add_argument("--again", action="store_true", help="also what this commit has a result of")
    again = commands.add_parser("cadence")
    again.add_argument("--systems", nargs="+", default=["turnmill"], choices=MODULES)
    again.add_argument("--every", nargs="+", type=float, default=[60.0, 10.0])
    again.add_argument("--groups", nargs="+", default=[AROUND, ALL])
    again.add_argument("--seeds", nargs="+", type=int, default=[0])
    again.add_argument("--rounds", type=int, default=1)
    again.add_argument("--steps", type=int, default=cadence.STEPS)
    again.add_argument("--hang-seconds", type=float, default=HANG_SECONDS)
    again.add_argument("--longest", type=float, default=cadence.LONGEST_SECONDS)
    commands.add_parser("page")
    options = parser.parse_args()
    # The run that is in progress ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.command == "run":
        run_all(options)
    elif options.command == "cadence":
        cadence.run_all(options)
    else:
        # Not after each run: those that follow would have another state of the files.
        page.write()


def run_all(options: argparse.Namespace) -> None:
    """Run each system undisturbed, and then with each fault and seed that this commit has no result of."""
    commit = present_commit()
    for name in options.systems:
        calm = undisturbed(name, options, commit)
        known = {(r.fault, r.seed) for r in latest() if (r.system, r.commit) == (name, commit)}
        for kind, seed in itertools.product(chosen(name, options), options.seeds):
            if options.again or (kind, seed) not in known:
                try:
                    record = hurt(name, kind, seed, moment(kind, seed, window(calm)), options)
                except BenchmarkError as error:
                    print(f"{name}, {kind}, seed {seed}: {error}", file=sys.stderr, flush=True)
                    continue
                measured = measure(record, calm, steps=options.steps, hang_seconds=options.hang_seconds)
                keep(name, kind, seed, measured, commit)


def hurt(name: str, kind: str, seed: int, after: float, options: argparse.Namespace) -> Record:
    """Return the record of a run with a fault; if it was over before the moment, of one with an earlier moment."""
    for part in MOMENT_PARTS:
        record = contained(name, kind, seed, options, moment=after * part)
        if record.faults:
            return record
    raise BenchmarkError("the run was over before the fault")


def chosen(name: str, options: argparse.Namespace) -> list[str]:
    """Return the faults that were asked for, of parts that the system has."""
    names = SUBSET if options.subset else NAMES
    return [f.name for f in faults_of(name) if f.name in names and any(f.name.startswith(w) for w in options.faults)]


def undisturbed(name: str, options: argparse.Namespace, commit: str) -> Record:
    """Return the record of an undisturbed run of this commit, and run one if there is none."""
    file = RUNS / name / f"undisturbed-{commit}-{options.steps}.json"
    if not file.exists():
        system(name).prepare(RUNS)
        record = contained(name, UNDISTURBED, 0, options)
        measured = measure(record, record, steps=options.steps, hang_seconds=options.hang_seconds)
        keep(name, UNDISTURBED, 0, measured, commit)
        if measured.outcome != "ended":
            sys.exit(f"{name} does not train undisturbed: see {RUNS / name}")
        file.write_text(json.dumps(asdict(record)))
    return Record.from_json(json.loads(file.read_text()))


def keep(name: str, kind: str, seed: int, measured: Measured, commit: str) -> None:
    """Add a line to the results."""
    date = datetime.now(UTC).date().isoformat()
    run = {"commit": commit, "date": date, "system": name, "version": system(name).version()}
    result = Result(**run, fault=kind, seed=seed, **asdict(measured))
    append_result(RESULTS, result)
    print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
