"""Results of runs with faults: one line each, oldest first."""

from dataclasses import dataclass

from chaos.measures import Measured
from results_file import ROOT, read_results

RESULTS = ROOT / "benchmarks" / "results" / "chaos.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result(Measured):
    """What became of one run."""

    commit: str
    date: str
    system: str
    version: str
    fault: str
    seed: int


def latest() -> list[Result]:
    """Return the last result of each system, fault and seed."""
    found = {(r.system, r.fault, r.seed): r for r in read_results(RESULTS, Result)}
    return list(found.values())
