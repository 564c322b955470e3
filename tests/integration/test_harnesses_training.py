"""Agents of others from their packages, unchanged, train until the first update of the policy."""

import json
from pathlib import Path

import pytest

from support.harnesses import HARNESSES, PATH
from support.random_policy import write_policy
from support.training_runs import TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

DOCS = Path(__file__).parents[2] / "docs"

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{name: harness}}
spec:
  model: {{path: {model}}}
  agent:
    type: harness
    command: {command}
    variables: {variables}
    groupSize: 4
    maxTurns: 3
    maxPromptLength: {prompt}
    maxResponseLength: {response}
    maxAnswerLength: 16
    maxConcurrentTrajectories: 2
    timeoutSeconds: 300
    onTimeout: reward
  environment: {{name: "support.tasks:EverySecond"}}
  algorithm: {{type: grpo, minibatchTasks: 1}}
  training: {{steps: 1, tasksPerStep: 1, validation: {{episodes: 1}}}}
  resources: {{device: cpu}}
"""

CONTEXTS = {"codex": 12_000, "claude-code": 12_000, "opencode": 8_000, "qwen-code": 20_000, "mini-swe-agent": 4_000}
"""Tokens of a conversation; those of programs of a few lines are short."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    write_policy(folder, (page.read_text() for page in sorted(DOCS.rglob("*.md"))), context=32_768)
    return folder


@pytest.mark.parametrize("name", HARNESSES)
def test_it_trains_until_its_first_update(name: str, policy: Path, tmp_path: Path):
    harness = HARNESSES[name]
    if not harness.is_installed:
        pytest.skip("`make harnesses` has not installed it")
    context = CONTEXTS.get(name, 1_000)
    job = tmp_path / "job.yaml"
    job.write_text(
        JOB.format(
            model=policy,
            command=json.dumps(harness.command),
            variables=json.dumps({"PATH": PATH, **harness.variables}),
            prompt=context - 500,
            response=500,
        )
    )
    with TrainingRun(job, tmp_path / "run", {"PYTHONPATH": str(Path(__file__).parents[1])}) as run:
        run.train()

    update = run.metrics[1]
    assert update["actor/grad_norm"] > 0
    assert update["training/rollout_probs_diff_mean"] < 1e-4
    assert update["turnmill/token_mismatches"] == 0
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert len(episodes) == 1 + 4 + 1
    assert not [episode.failed_cause for episode in episodes if episode.failed_cause]
