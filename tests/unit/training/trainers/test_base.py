"""The beginning of a run and its validations, on trainers without verl."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import FixedKLController
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainer

from support.jobs import tool_job
from turnmill.jobs import parse_job
from turnmill.observability.progress import read_progress
from turnmill.training import checkpoints
from turnmill.training.checkpoints import Checkpoint, RunState
from turnmill.training.dataset import TaskRows
from turnmill.training.recorder import RunRecorder
from turnmill.training.trainers import base
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.verl.workers import CriticWorker, PolicyWorker


class Queue:
    """A queue with the keys and tags of validations."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, *, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
        assert partition_id == "val"
        self.tags |= dict(zip(keys, tags, strict=True))

    def kv_clear(self, *, keys: list[str], partition_id: str) -> None:
        assert partition_id == "val"
        for key in keys:
            del self.tags[key]


class Trainer(RunTrainer):
    """A trainer without a run, whose validations succeed as often as it has taken steps."""

    def __init__(self, folder: Path, queue: Queue, *, step: int, kl_in_reward: bool = False) -> None:
        self.job = parse_job(tool_job(training__validation={"episodes": 3}))
        self.config = OmegaConf.create({"algorithm": {"use_kl_in_reward": kl_in_reward}})
        self.recorder = RunRecorder(self.job, folder)
        self.recorder.folder.create()
        self.resumed_from = None
        self.resumable_episodes = SimpleNamespace(begin=lambda version: None)
        self.kl_ctrl_in_reward = FixedKLController(0.1)
        self.global_steps = step
        self.train_dataset = TaskRows(None, None, None, max_samples=16)
        self.queue = queue
        self.agent_loop_manager = self.replay_buffer = self
        self.sampled: list[tuple[int, str, int]] = []

    def resume_from(self, step: int, kl_coefficient: float) -> None:
        """Let the attempt resume from a checkpoint."""
        self.resumed_from = Checkpoint(Path("checkpoint"), RunState(step, (), kl_coefficient))

    def generate_sequences(self, batch: TensorDict) -> None:
        """Play the episodes of a validation."""
        assert bool(batch["validate"])
        self.played = list(batch["uid"])

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Return the rows of the episodes that were played."""
        self.sampled.append((global_steps, partition_id, batch_size))
        return KVBatchMeta(partition_id="val", keys=self.played, tags=[{} for _ in self.played]), {}

    def _measure_validation(self, batch: KVBatchMeta, *, num_episodes: int) -> dict[str, float]:
        assert len(batch.keys) == num_episodes
        return {"validation/success": float(self.global_steps)}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    monkeypatch.setattr(base, "tq", made)
    return made


@pytest.mark.parametrize("steps", [(), (10,), (10, 20)])
def test_an_attempt_resumes_from_the_newest_complete_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: tuple[int, ...]
):
    def init(self: RunTrainer, config: DictConfig) -> None:
        self.replay_buffer = SimpleNamespace()

    monkeypatch.setattr(PPOTrainer, "__init__", init)
    root = tmp_path / "checkpoints"
    for step in (*steps, 30):
        checkpoints.folder_of(root, step).mkdir(parents=True)
    for step in steps:
        checkpoints.complete(root, RunState(step, (), 0.0), keep=2)
    run = {"job": parse_job(tool_job()).model_dump_json(by_alias=True), "run_dir": str(tmp_path)}
    config = OmegaConf.create({"turnmill": run, "trainer": {"device": "cpu", "resume_mode": "disable"}})

    RunTrainer(config)

    resumed = {
        "resume_mode": "resume_path",
        "resume_from_path": str(checkpoints.folder_of(root, max(steps, default=0))),
    }
    assert config.trainer == ({"device": "cpu"} | (resumed if steps else {"resume_mode": "disable"}))


def test_every_role_of_the_training_has_workers_of_turnmill(queue, monkeypatch, tmp_path):
    def init(self: RunTrainer) -> None:
        self.mapping, self.resource_pool_manager = {}, SimpleNamespace(resource_pool_spec={})
        self.role_worker_mapping = dict.fromkeys([Role.ActorRolloutRef, Role.Critic], "verl's own")

    monkeypatch.setattr(PPOTrainer, "_init_resource_pool_mgr", init)
    trainer = Trainer(tmp_path, queue, step=1)

    trainer._init_resource_pool_mgr()

    workers = {role: made.__ray_metadata__.modified_class for role, made in trainer.role_worker_mapping.items()}
    assert issubclass(workers[Role.ActorRolloutRef], PolicyWorker)
    assert issubclass(workers[Role.Critic], CriticWorker)


def validations(trainer: Trainer) -> list[tuple[int, float]]:
    return [(row["step"], row["validation/success"]) for row in trainer.recorder.folder.read_metrics()]


def test_a_run_begins_with_a_validation_of_the_initial_policy(queue, tmp_path):
    trainer = Trainer(tmp_path, queue, step=1)

    trainer.on_train_begin()

    assert validations(trainer) == [(0, 1.0)]
    # Its requests are of step 0, before the first one.
    assert trainer.sampled == [(0, "val", 3)]


@pytest.mark.parametrize(("kl_in_reward", "coefficient"), [(True, 0.25), (False, 0.1)])
def test_a_resumed_run_continues_with_its_step_and_coefficient_and_without_a_validation(
    queue, tmp_path, kl_in_reward, coefficient
):
    trainer = Trainer(tmp_path, queue, step=7, kl_in_reward=kl_in_reward)
    trainer.resume_from(7, kl_coefficient=0.25)

    trainer.on_train_begin()

    progress = read_progress(trainer.recorder.folder)
    assert progress is not None
    assert (progress.phase, progress.done) == ("training", 7)
    assert trainer.kl_ctrl_in_reward.value == coefficient
    assert validations(trainer) == []


@pytest.mark.parametrize("resumed", [False, True])
def test_an_attempt_forgets_trajectories_of_later_policies_before_it_plays_any(queue, tmp_path, resumed):
    trainer = Trainer(tmp_path, queue, step=7)
    if resumed:
        trainer.resume_from(7, kl_coefficient=0.25)
    begun: list[tuple[int, bool]] = []
    trainer.resumable_episodes.begin = lambda version: begun.append((version, bool(trainer.sampled)))

    trainer.on_train_begin()

    assert begun == [(7 if resumed else 0, False)]


def test_what_no_attempt_could_resume_is_forgotten_once_the_checkpoint_of_a_step_is_complete(queue, tmp_path):
    trainer, order = Trainer(tmp_path, queue, step=7), []
    trainer._complete_checkpoint = lambda: order.append("checkpoint")
    trainer.resumable_episodes.after_step = order.append

    trainer._after_step()

    assert order == ["checkpoint", 7]


def test_a_validation_leaves_nothing_in_the_queue_and_says_how_long_it_took(queue, tmp_path):
    trainer = Trainer(tmp_path, queue, step=4)

    metrics = trainer._validate()

    assert trainer.sampled == [(4, "val", 3)]
    assert len(set(trainer.played)) == 3
    assert queue.tags == {}
    assert metrics["validation/success"] == 4.0
    assert metrics["validation/seconds"] >= 0
