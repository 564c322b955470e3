"""What a run reads of verl's settings, recorded in all its processes."""

import pytest

from support.setting_reads import read_settings, variables
from support.training_runs import TrainingRun
from turnmill.training.verl import known_settings
from turnmill.training.verl.config import compose_defaults
from turnmill.training.verl.ineffective_settings import needs_another

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# With what makes verl read most: a critic, a reference, an entropy, a validation and a checkpoint.
JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small-tools}
spec:
  model: {warmStart: {turns: 600, gradientSteps: 60, maxLoss: 10}}
  agent:
    {type: tool, stopTokens: ["</python>"], groupSize: 4, minTurns: 1, maxPromptLength: 32, maxResponseLength: 64,
     maxActionLength: 16, maxObsLength: 16, toolCallMaxRetries: 20}
  environment: {name: "support.tasks:CoinFlips"}
  algorithm: {type: ppo, kl: {coefficient: 0.01, in: loss}, minibatchTasks: 2, entropyCoefficient: 0.001}
  training: {steps: 1, tasksPerStep: 4, checkpointEvery: 1, validation: {episodes: 4}}
  resources: {device: cpu}
"""


@pytest.mark.feature("verl's multi-turn", "settings without effect")
def test_every_setting_is_read_in_a_run_or_refused_or_listed_with_what_it_needs(tmp_path):
    job, folder = tmp_path / "job.yaml", tmp_path / "reads"
    job.write_text(JOB)
    with TrainingRun(job, tmp_path / "run", variables(folder)) as run:
        run.train()

    defaults = compose_defaults()
    names = [*known_settings._names(defaults)]
    leaves = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    read = read_settings(folder, defaults)
    unread = [name for name in leaves if name not in read and not name.endswith("._target_")]

    # The settings of this job, which would be missing if the recording did not work.
    assert {"actor_rollout_ref.actor.optim.clip_grad", "critic.optim.lr", "actor_rollout_ref.model.path"} <= read
    assert len(read) > 300
    assert [
        name for name in unread if not known_settings.names_without_effect({name: 1}) and needs_another(name) is None
    ] == []
