"""Whole runs of GRL's agents."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from support.training_runs import DIAGNOSTICS, TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "sokoban-grl-cpu.yaml"
FEW = (
    *("--set", "agent.validationAgentGroupNum=[8]"),
    # A warm start that has learned the form of an answer, in less time than the example's.
    *("--set", "model.warmStart={turns: 2000, gradientSteps: 200, batchSize: 32, maxLoss: 10}"),
)

MIXED = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: mixed}
spec:
  model: {warmStart: {turns: 600, gradientSteps: 40, batchSize: 32, maxLoss: 10}}
  agent:
    type: grl
    train: [sokoban, tetris]
    agentGroupNum: [2, 3]
    agentGroupSize: [4, 2]
    validation: [tetris, sokoban]
    validationAgentGroupNum: [4, 2]
    validationSteps: 2
    validationSampling: training
    rolloutFilterRatio: 0.5
    useTurnScores: true
    rewardNormalization: {grouping: inductive, method: mean_std}
    turns: asynchronous
    maxPromptLength: 512
    maxResponseLength: 24
    agents:
      - name: sokoban
        agentType: sokobanAgent
        agentConfig: {maxTurns: 3, maxActionsAllTurns: 3, systemPrompt: s, prompt: p}
        envConfig: {dim_room: [6, 6], num_boxes: 1, view: spaced}
      - name: tetris
        agentType: tetrisAgent
        agentConfig: {maxTurns: 2, maxActionsAllTurns: 6, maxActionsPerTurn: 3, systemPrompt: s, prompt: p}
        envConfig: {view: spaced}
  algorithm: {type: ppo, actorLearningRate: 1e-4, minibatchTasks: 2}
  training: {steps: 2, mode: colocate_async, checkpointEvery: 1}
  resources: {device: cpu, agentLoopWorkers: 2}
  # Far fewer than the first prompts of all episodes have together: the engine reads them one after another.
  verl: {actor_rollout_ref.rollout.max_num_batched_tokens: 600}
"""

SCRIPT = """
import torch

from turnmill.environments.grl.grid_agents import SokobanAgent
from turnmill.grl import AgentTrainer, register_agent


def reward_fn(batch):
    rewards = torch.zeros(batch.batch["responses"].shape)
    chats = batch.non_tensor_batch["messages_list"]
    rewards[:, -1] = torch.tensor([100.0 + len(chat[-1]["content"]) for chat in chats])
    return rewards


@register_agent("politeAgent")
class PoliteAgent(SokobanAgent):
    system_prompt = "please solve the puzzle"


CONFIG = {
    "trainer": {"total_training_steps": 1},
    "algorithm": {"adv_estimator": "grpo"},
    "data": {"max_prompt_length": 512, "max_response_length": 24},
    "rollout": {"train": ["polite"], "agent_group_num": 2, "agent_group_size": 4, "rollout_filter_ratio": 1.0,
                "validation_agent_group_num": 2},
    "polite": {
        "agent_type": "politeAgent",
        "agent_config": {"max_turns": 2, "max_actions_all_turns": 2},
        "env_config": {"view": "spaced", "action_lookup": {0: "up", 1: "down", 2: "left", 3: "right"}},
    },
}

if __name__ == "__main__":
    made = "model.warmStart={turns: 300, gradientSteps: 20, batchSize: 32, maxLoss: 10}"
    trainer = AgentTrainer(config=CONFIG, overrides=[made, "resources.device=cpu"], output="run",
                           reward_fn=reward_fn, val_reward_fn=reward_fn)
    trainer.init_workers()
    print("success", trainer.fit().summary is not None)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TrainingRun]:
    job = tmp_path / "job.yaml"
    job.write_text(MIXED)
    with TrainingRun(job, tmp_path / "run") as run:
        yield run


def num_updates(run_dir: Path, part: str, *, step: int, folder: Path) -> int:
    """Return how many updates the optimizer of a checkpoint has made."""
    file = folder / f"{part}_{step}.pt"
    dcp_to_torch_save(run_dir / "checkpoints" / f"global_step_{step}" / part / "state", file)
    state = torch.load(file, weights_only=True)["optimizer"]
    return int(max(each["step"] for each in state.values()))


@pytest.mark.feature("GRL", "a trainer without a data set")
@pytest.mark.feature("GRL", "checkpoints")
def test_the_example_trains_without_a_data_set_and_resumes_from_its_checkpoint(tmp_path):
    with TrainingRun(EXAMPLE, tmp_path / "run") as run:
        run.train(*FEW, "--set", "training.steps=1")
        assert run.checkpoints() == [1]
        run.train(*FEW, "--set", "training.steps=2", "--resume")

        before, first, second = run.metrics
        assert run.checkpoints() == [1, 2]
        for part in ("actor", "critic"):
            # The second attempt resumed from the checkpoint: its optimizer has counted the updates of both.
            first_updates, updates = (num_updates(run.folder, part, step=step, folder=tmp_path) for step in (1, 2))
            assert updates > first_updates > 0
    for key in ("success", "num_actions", "action_is_effective", "action_is_valid"):
        assert all(math.isfinite(row[f"train/sokobanAgent/{key}"]) for row in (first, second))
        assert all(math.isfinite(row[f"val-env/sokobanAgent/{key}"]) for row in (before, second))
    for part in ("std", "max", "mean"):
        assert {f"rollout/in_group_{part}", f"rollout/chosen_in_group_{part}"} <= first.keys()
    assert "val-env/test_score/unknown" in before
    assert (first["turnmill/trajectories"], before["validation/episodes"]) == (64, 8)
    assert first["rollout/chosen_in_group_std"] >= first["rollout/in_group_std"]
    assert all(row["turnmill/token_mismatches"] == 0 for row in (first, second))
    assert all(row["training/rollout_probs_diff_mean"] < 1e-4 for row in (first, second))
    assert all(row.keys() >= DIAGNOSTICS for row in (first, second))
    log = TrajectoryLog(RunFolder(tmp_path / "run"))
    turns = {(turn.episode, turn.turn): turn for turn in log.read_turns() if turn.step == 1}
    kept = list(log.advantages.read_tokens(1))
    assert kept
    assert all(len(values) == len(turns[episode, turn].response_ids) for episode, turn, values in kept)
    assert all(row["actor/grad_norm"] > 0 and row["critic/grad_norm"] > 0 for row in (first, second))


@pytest.mark.feature("GRL", "several kinds of agents")
def test_several_kinds_of_agents_train_together_with_turn_scores_and_async_rollout(run):
    run.train()

    *_, last = run.metrics
    assert {"train/sokoban/success", "train/tetris/success", "val-env/sokoban/success"} <= last.keys()
    assert last["turnmill/trajectories"] == 2 * 4 + 3 * 2
    assert last["validation/episodes"] == 2 * (4 + 2)
    assert last["turnmill/token_mismatches"] == 0
    episodes = [e for e in TrajectoryLog(RunFolder(run.folder)).read_episodes() if not e.validation]
    kinds = {(e.turns[0].step, e.turns[0].environment): e.turns[0].environment_name for e in episodes}
    assert [kinds[1, group] for group in range(5)] == ["sokoban"] * 2 + ["tetris"] * 3
    seeds: dict[tuple[int, int], set[int | None]] = {}
    for episode in episodes:
        first = episode.turns[0]
        seeds.setdefault((first.step, first.environment), set()).add(first.seed)
    assert all(len(group) == 1 for group in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


@pytest.mark.feature("GRL", "a trainer without a data set")
@pytest.mark.feature("GRL", "a reward function of your own")
def test_an_agent_and_a_reward_function_defined_in_a_script_train_from_python(tmp_path):
    (tmp_path / "polite.py").write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, "polite.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "success True" in done.stdout
    folder = RunFolder(tmp_path / "run")
    before, after = folder.read_metrics()
    assert (before["step"], after["step"]) == (0, 1)
    # No agent gives more than 11; the function gives at least 100.
    assert before["val-env/test_score/unknown"] >= 100
    assert after["critic/score/min"] >= 100
    assert after["turnmill/reward_mean"] < 11
    (first, *_) = TrajectoryLog(folder).read_turns()
    assert "please solve the puzzle" in first.prompt
