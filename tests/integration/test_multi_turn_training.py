"""A whole run of verl's multi-turn rollout, as a user starts it, with a real engine, worker and update."""

from pathlib import Path

import pytest

from support.training_runs import DIAGNOSTICS, TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "calculator-multi-turn-cpu.yaml"
SMALL = (
    # A warm start that has learned the form of a call and not its arguments.
    "model.warmStart={turns: 1000, gradientSteps: 450, maxLoss: 10}",
    *("training.steps=1", "training.tasksPerStep=4", "algorithm.minibatchTasks=2", "agent.groupSize=4"),
    "training.validation.episodes=4",
)


def test_the_example_reaches_its_first_update_and_calls_its_function(tmp_path):
    overrides = [word for override in SMALL for word in ("--set", override)]

    with TrainingRun(EXAMPLE, tmp_path / "run") as run:
        run.train(*overrides)

    before, after = run.metrics
    assert (before["step"], after["step"]) == (0, 1)
    assert after["turnmill/trajectories"] == 16
    assert after["turnmill/tool/num_tool_calls/max"] >= 1
    assert after["turnmill/token_mismatches"] == 0
    assert after["training/rollout_probs_diff_mean"] < 1e-4
    assert after.keys() >= DIAGNOSTICS
    assert after["rollout_corr/k3_kl"] < 1e-6
    turns = [turn for turn in TrajectoryLog(RunFolder(run.folder)).read_turns(validation=False) if turn.tool]
    assert {call["name"] for turn in turns for call in turn.tool["calls"]} == {"calculator"}
    # As the chat template formats an observation between two responses.
    assert all(turn.observation.startswith("\n<usr>") and turn.observation.endswith("<ast>") for turn in turns)
