"""Results of runs with faults: one line each, oldest first."""

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.measures import Measured
from chaos.systems import GROUP_SIZE, TASKS_PER_STEP
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

    @property
    def left_out_cell(self) -> str:
        """Trajectories that were left out, and in brackets those of them whose calls were answered, where known."""
        known = f" ({self.left_out_answered})" if self.left_out and self.left_out_answered is not None else ""
        return f"{self.left_out}{known}"


def latest() -> list[Result]:
    """Return the last result of each system, fault and seed."""
    found = {(r.system, r.fault, r.seed): r for r in read_results(RESULTS, Result)}
    return list(found.values())


CADENCE_RESULTS = ROOT / "benchmarks" / "results" / "chaos_cadence.jsonl"


@dataclass(frozen=True, kw_only=True)
class CadenceResult(Result):
    """What became of a run into which the faults of a group, `fault`, came again and again."""

    every: float
    """Seconds between two faults."""

    round: int
    own_ettr: float | None
    """Time of the complete steps by the run's own clock, as a share of that from the first call to the last step."""

    undisturbed_seconds: float
    """Time from the first call to the last step of the undisturbed run of the same round."""

    undisturbed_own_ettr: float | None
    injected: Sequence[tuple[str, float]]
    """Faults in their order, with the seconds that each has cost."""

    @property
    def turns_lost_each(self) -> float:
        """Turns lost for each trajectory that was in flight when a fault came."""
        return self.turns_lost / max(1, len(self.injected) * TASKS_PER_STEP * GROUP_SIZE)

    @property
    def late_seconds(self) -> float:
        """Seconds by which steps were late, of all faults together."""
        return sum(seconds for _, seconds in self.injected)

    @property
    def ettr_by_delays(self) -> float:
        """ETTR from the delays of steps, of which each is beside steps of the undisturbed run."""
        return self.undisturbed_seconds / (self.undisturbed_seconds + max(0.0, self.late_seconds))


def latest_cadences() -> list[CadenceResult]:
    """Return the last result of each system, group, cadence, seed and round."""
    results = read_results(CADENCE_RESULTS, CadenceResult)
    found = {(r.system, r.fault, r.every, r.seed, r.round): r for r in results}
    return list(found.values())
