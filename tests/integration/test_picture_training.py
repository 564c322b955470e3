"""A run whose policy reads pictures that a tool returns, with a real engine, worker and update."""

from pathlib import Path

import pytest

from support.training_runs import TOOL_JOB, TrainingRun
from support.vision import save_vision_model
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.testing.conversations import THINKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AGENT = """{type: tool, toolType: "support.picture_tool:Pictures", stopTokens: ["</python>"], groupSize: 4, minTurns: 3,
  maxTurns: 3, maxPromptLength: 32, maxResponseLength: 72, maxActionLength: 16, maxObsLength: 16}"""


@pytest.mark.feature("verl-tool", "observations with pictures and sound")
# Micro-batches of padded rows, as on CPUs, and of packed ones, as on GPUs.
@pytest.mark.parametrize("packed", [False, True])
def test_the_model_learns_from_what_the_engine_saw(tmp_path: Path, packed: bool):
    pytest.importorskip("torchvision")
    save_vision_model(tmp_path / "model", THINKS)
    (tmp_path / "job.yaml").write_text(TOOL_JOB)
    overrides = [f"model={{path: {tmp_path / 'model'}}}", f"agent={AGENT}", "algorithm.kl.coefficient=0"]
    overrides += ["training.steps=2", "training.validation.episodes=0"]
    overrides.append(f"verl={{actor_rollout_ref.model.use_remove_padding: {str(packed).lower()}}}")

    with TrainingRun(tmp_path / "job.yaml", tmp_path / "run") as run:
        run.train(*(word for override in overrides for word in ("--set", override)))

    # Of a placeholder that only one of them can generate, k3 was 2e-4, and of a picture that only one of them sees.
    assert [row["rollout_corr/k3_kl"] < 1e-7 for row in run.metrics] == [True, True]
    assert [row["training/rollout_probs_diff_max"] < 1e-6 for row in run.metrics] == [True, True]
    assert all(row["actor/grad_norm"] > 0 for row in run.metrics)
    seen = [turn.observation for turn in TrajectoryLog(RunFolder(run.folder)).read_turns(validation=False)]
    assert {"<image>" in observation for observation in seen if observation} == {True, False}
