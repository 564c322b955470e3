"""Results of runs with faults: one line each, oldest first."""

from collections.abc import Sequence
from dataclasses import dataclass

from results_file import ROOT, read_results

RESULTS = ROOT / "benchmarks" / "results" / "chaos.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one run; `measures.Measured` says what the figures are."""

    commit: str
    date: str
    system: str
    version: str
    fault: str
    seed: int
    outcome: str
    steps: int
    turns_lost: int
    effects_repeated: int
    rewards_faked: int
    left_out: int
    advantage_change: float
    recover_seconds: float | None
    step_seconds: float
    ettr: float
    seconds: float
    moments: Sequence[float]
    note: str


def latest() -> list[Result]:
    """Return the last result of each system, fault and seed."""
    found = {(r.system, r.fault, r.seed): r for r in read_results(RESULTS, Result)}
    return list(found.values())
