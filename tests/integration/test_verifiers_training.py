"""An environment of verifiers, from its sources and unchanged, trains a policy until its first update."""

import json
from pathlib import Path

import pytest

from support.random_policy import write_policy
from support.training_runs import TrainingRun
from support.verifiers_environments import PYTHON, SUBJECTS, is_installed, variables
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_installed(), reason="`make harnesses` has not installed verifiers"),
]

DOCS = Path(__file__).parents[2] / "docs"

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{name: verifiers}}
spec:
  model: {{path: {model}}}
  agent:
    type: harness
    variables: {variables}
    groupSize: 4
    maxTurns: 3
    maxPromptLength: 500
    maxResponseLength: 500
    maxAnswerLength: 16
    maxConcurrentTrajectories: 2
    timeoutSeconds: 300
  environment: {{name: verifiers, task: echo-v1, python: {python}, options: {options}}}
  algorithm: {{type: grpo, minibatchTasks: 1}}
  training: {{steps: 1, tasksPerStep: 1, validation: {{episodes: 1}}}}
  resources: {{device: cpu}}
"""

ODD = """
async def odd(trace):
    return float(len(trace.last_reply or "") % 2)
"""
"""A reward that random answers differ in; verifiers' settings add it to the environment's own."""


def test_it_trains_until_its_first_update(tmp_path: Path):
    write_policy(tmp_path / "policy", (page.read_text() for page in sorted(DOCS.rglob("*.md"))), context=32_768)
    (tmp_path / "rewards.py").write_text(ODD)
    subject = SUBJECTS["echo-v1"]
    rewards = {"odd": {"fn": f"{tmp_path / 'rewards.py'}:odd"}}
    settings = {**subject.settings(""), "taskset": {"task": {"rewards": rewards}}}
    given = {name: value for name, value in variables(subject).items() if name not in ("PATH", "HOME")}
    (tmp_path / "job.yaml").write_text(
        JOB.format(
            model=tmp_path / "policy",
            variables=json.dumps(given),
            python=PYTHON,
            options=json.dumps({"settings": settings, "validationTasks": 1}),
        )
    )
    with TrainingRun(tmp_path / "job.yaml", tmp_path / "run") as run:
        run.train()

    update = run.metrics[1]
    assert update["actor/grad_norm"] > 0
    assert update["training/rollout_probs_diff_mean"] < 1e-4
    assert update["turnmill/token_mismatches"] == 0
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert len(episodes) == 1 + 4 + 1
    assert not [episode.failed_cause for episode in episodes if episode.failed_cause]
