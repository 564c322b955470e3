"""Breaks learning on purpose, and shows that the learning gate fails for it.

.venv/bin/python benchmarks/learning_sabotages.py [--jobs EXAMPLE...] [--sabotages NAME...]

Each run imports a copy of the package in which one line is changed. Prints a line for each run, and exits with 1 if a
broken run passes the gate. Takes one to two minutes for each run.
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.learning_gate import GATES, ROOT, Gate
from support.training_runs import TrainingRun

PACKAGE = ROOT / "platform" / "turnmill"


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A change of lines of the package; each must be there exactly once."""

    changes: tuple[tuple[str, str, str], ...]
    """File, text and what replaces it."""

    def apply(self, package: Path) -> None:
        """Change a copy of the package. Raises ValueError if the text is not there once."""
        for name, text, replacement in self.changes:
            path = package / name
            found = path.read_text()
            if found.count(text) != 1:
                raise ValueError(f"{path}: {text!r} is there {found.count(text)} times; adapt this sabotage.")
            path.write_text(found.replace(text, replacement))


SABOTAGES = {
    "sign of the advantage flipped": Sabotage(
        (
            ("training/batches/trajectory.py", '{"advantages": advantages_RG,', '{"advantages": -advantages_RG,'),
            ("training/batches/turn.py", "_ragged(advantages_RG[:turns]", "_ragged(-advantages_RG[:turns]"),
        )
    ),
    "mask inverted": Sabotage(
        (
            ("rollout/rows.py", "list(row.response.mask) if", "[1 - m for m in row.response.mask] if"),
            ("rollout/verlog/rows.py", "response_mask=[1] * len(", "response_mask=[0] * len("),
        )
    ),
    "learning rate 0": Sabotage(
        (("training/verl/config.py", 'optim.lr": algorithm.actor_learning_rate', 'optim.lr": 0.0'),)
    ),
    "weights not synced": Sabotage(
        (
            (
                "training/trainers/base.py",
                "        super().on_step_end()\n",
                "        self.checkpoint_manager.update_weights = lambda *_: None\n        super().on_step_end()\n",
            ),
        )
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="+", choices=[gate.example for gate in GATES])
    parser.add_argument("--sabotages", nargs="+", choices=list(SABOTAGES), default=list(SABOTAGES))
    asked = parser.parse_args()
    passed = 0
    for gate in GATES:
        for name in asked.sabotages if gate.example in (asked.jobs or [gate.example]) else ():
            passed += run_broken(gate, name)
    return 1 if passed else 0


def run_broken(gate: Gate, name: str) -> bool:
    """Run a gate with a sabotage; return whether it passes."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "platform"
        shutil.copytree(PACKAGE, copy / "turnmill", ignore=shutil.ignore_patterns("__pycache__"))
        SABOTAGES[name].apply(copy / "turnmill")
        with TrainingRun(gate.job, Path(temporary) / "run", {"PYTHONPATH": str(copy)}) as run:
            try:
                run.train(*gate.arguments)
            except AssertionError as error:
                print(f"{gate.example}, {name}: the run failed, gate red: {error}", flush=True)
                return False
            outcome = gate.outcome(run)
    print(f"{gate.example}, {name}: {outcome}: gate {'GREEN' if outcome.has_learned else 'red'}", flush=True)
    return outcome.has_learned


if __name__ == "__main__":
    sys.exit(main())
