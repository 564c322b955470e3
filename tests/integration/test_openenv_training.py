"""An OpenEnv environment with tools trains a policy until its first update."""

from pathlib import Path

import pytest

from support.openenv_servers import served
from support.openenv_tasks import CalculatorServer
from support.training_runs import TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{name: openenv-tools}}
spec:
  # As on the page on harnesses: it calls the tool in a third of the tasks.
  model:
    warmStart:
      {{hiddenSize: 128, heads: 4, gradientSteps: 1200, minGradientSteps: 1000, learningRate: 2e-3, maxLoss: 1.2}}
  agent:
    type: harness
    entryPoint: turnmill.openenv:play
    reward: program
    groupSize: 4
    maxTurns: 4
    maxPromptLength: 128
    maxResponseLength: 128
    maxConcurrentTrajectories: 4
  environment:
    name: support.openenv_tasks:OpenEnvCalculator
    options: {{url: "{url}", observationField: text}}
  algorithm: {{type: grpo, minibatchTasks: 4}}
  training: {{steps: 1, tasksPerStep: 4, validation: {{episodes: 4}}}}
  resources: {{device: cpu}}
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_an_environment_with_tools_trains_until_the_first_update(tmp_path: Path):
    server = CalculatorServer()
    with served(server) as url:
        (tmp_path / "job.yaml").write_text(JOB.format(url=url))
        with TrainingRun(tmp_path / "job.yaml", tmp_path / "run") as run:
            run.train()

    assert server.num_calls > 0
    assert [row["step"] for row in run.metrics] == [0, 1]
    assert run.metrics[1]["actor/grad_norm"] > 0
    assert run.metrics[1]["turnmill/token_mismatches"] == 0
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert len(episodes) == 4 + 16 + 4
    assert not [episode.failed_cause for episode in episodes if episode.failed_cause]
