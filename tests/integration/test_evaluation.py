"""Whole runs without learning: `turnmill run --evaluate`."""

from pathlib import Path

import pytest

from support.training_runs import TOOL_JOB, TrainingRun
from turnmill.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

TURN_JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: turns}
spec:
  model: {warmStart: {turns: 600, gradientSteps: 40, maxLoss: 10}}
  agent: {maxTurns: 6, prompt: compact, maxPromptTokens: 160, maxResponseTokens: 20}
  environment: {name: babyai, task: GoToObj, count: 4}
  algorithm: {minibatchTurns: 8}
  training: {steps: 2, turnsPerStep: 16, validation: {episodes: 8}}
  resources: {device: cpu}
"""


@pytest.mark.feature("Verlog", "a look at the outputs before training")
@pytest.mark.parametrize("job", [TURN_JOB, TOOL_JOB], ids=["turns", "tools"])
def test_an_evaluation_validates_once_and_learns_nothing(job, tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text(job)
    with TrainingRun(file, tmp_path / "run", {"PYTHONPATH": str(Path(__file__).parents[1])}) as run:
        run.train("--evaluate")

    (row,) = run.metrics
    assert (row["step"], row["validation/episodes"]) == (0, 8)
    assert 0 <= row["validation/success"] <= 1
    assert not any(name.startswith(("actor/", "critic/vf")) for name in row)
    assert [*(run.folder / "checkpoints").glob("*/actor")] == []
    assert "Done" in run.output.read_text()
    capsys.readouterr()
    assert main(["trajectories", str(run.folder)]) == 0
    assert "validation" in capsys.readouterr().out
