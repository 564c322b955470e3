"""The learning gate: a change that breaks learning fails here, in minutes.

`benchmarks/learning_sabotages.py` breaks it in several ways and shows that these tests then fail: each of them, so that
the second one can be left to the night.
"""

from pathlib import Path

import pytest

from support.learning_gate import GATES, Gate
from support.training_runs import TrainingRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "gate",
    [GATES[0], *(pytest.param(gate, marks=pytest.mark.nightly) for gate in GATES[1:])],
    ids=lambda gate: gate.example,
)
def test_an_example_learns_in_its_first_steps(gate: Gate, tmp_path: Path):
    with TrainingRun(gate.job, tmp_path / "run") as run:
        run.train(*gate.arguments)

    outcome = gate.outcome(run)
    assert outcome.has_learned, str(outcome)
