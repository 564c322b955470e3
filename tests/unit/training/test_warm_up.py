"""The KL penalty in rewards and the critic's warm-up, on trainers without verl."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import get_kl_controller

from support.jobs import job
from turnmill.jobs import AgentTrainingJob
from turnmill.training.trainers import turn as trainer
from turnmill.training.trainers.async_rollout import ColocateAsync, SeparateAsync
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.sync import Sync
from turnmill.training.trainers.turn import TurnTrainer

OLD = torch.tensor([[-1.0, -2.0, -3.0, 0.0], [-1.0, -1.0, 0.0, 0.0]])
REFERENCE = torch.tensor([[-1.5, -2.0, -2.0, 9.0], [-2.0, -1.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
SCORES = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.0, 0.0]])


def after_kl(kind: str, *, target: float = 0.1, step: int = 1, warmup: int = 0) -> tuple[torch.Tensor, float]:
    """Return the rewards after a penalty with coefficient 0.1, and the coefficient after the step.

    `warmup`: the first step in which the policy learns, as verl names it.
    """
    controller = get_kl_controller(SimpleNamespace(type=kind, kl_coef=0.1, target_kl=target, horizon=100))
    config = SimpleNamespace(algorithm=SimpleNamespace(kl_penalty="kl"), trainer=SimpleNamespace(critic_warmup=warmup))
    stub = SimpleNamespace(kl_ctrl_in_reward=controller, config=config, global_steps=step)
    metrics: dict[str, Any] = {}
    rewards = RunTrainer._after_kl(stub, SCORES, OLD, REFERENCE, MASK, metrics)  # type: ignore[arg-type]
    assert metrics["turnmill/kl_reference"] == pytest.approx((-0.5 / 3 + 1.0 / 2) / 2)
    return rewards, controller.value


@pytest.mark.feature("Verlog", "KL in the reward")
def test_the_kl_penalty_is_subtracted_from_the_reward_of_each_token():
    rewards, coefficient = after_kl("fixed")

    assert torch.allclose(rewards, SCORES - 0.1 * (OLD - REFERENCE) * MASK)
    assert coefficient == 0.1


@pytest.mark.feature("Verlog", "an adaptive coefficient")
@pytest.mark.parametrize(("target", "error"), [(0.001, 0.2), (100.0, -0.2), (1 / 6, 0.0)])
def test_the_error_of_an_adaptive_coefficient_is_clipped_to_a_fifth(target, error):
    _, coefficient = after_kl("adaptive", target=target)

    # The batch has two rows, the horizon is 100.
    assert coefficient == pytest.approx(0.1 * (1 + error * 2 / 100), rel=1e-5)


@pytest.mark.parametrize(
    ("step", "warmup", "held"),
    [(0, 0, True), (1, 0, False), (1, 4, True), (3, 4, True), (4, 4, False), (1, 1, False)],
)
def test_an_adaptive_coefficient_is_constant_during_critic_warm_up(step, warmup, held):
    rewards, coefficient = after_kl("adaptive", target=0.001, step=step, warmup=warmup)

    assert torch.allclose(rewards, SCORES - 0.1 * (OLD - REFERENCE) * MASK)
    assert (coefficient == 0.1) == held


class Learner(RunTrainer):
    """A trainer without verl that records the batches its critic learns from."""

    def __init__(self, spec: Any) -> None:
        self.job = SimpleNamespace(spec=spec)
        self.global_steps = 7
        self.config = SimpleNamespace(algorithm=SimpleNamespace(use_kl_in_reward=False))
        self.recorder = SimpleNamespace(phase=lambda *_, **__: _Phase(), advance=lambda *_: None, beat=lambda: None)
        self.learned: list[KVBatchMeta] = []
        self.gathered: list[KVBatchMeta] = []
        self.estimated: list[KVBatchMeta] = []
        self.calls: list[str] = []

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.learned.append(batch)
        self.calls.append("update critic")
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        raise AssertionError("the policy is updated")


@pytest.mark.parametrize(("step", "episodes", "every"), [(6, 2, 5), (7, 2, 7), (7, 0, -1)])
def test_the_last_step_validates_if_the_job_validates_at_all(step, episodes, every):
    validation = SimpleNamespace(episodes=episodes)
    trainer = Learner(SimpleNamespace(training=SimpleNamespace(validation=validation)))
    trainer.config.trainer = SimpleNamespace(test_freq=5)
    trainer.global_steps, trainer.total_training_steps = step, 7

    trainer.on_step_end()

    assert trainer.config.trainer.test_freq == every


class _Phase:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class WarmingUp(TurnTrainer, Learner):
    """A turn trainer that gathers rows without a rollout and estimates no advantages."""

    def __init__(self, spec: Any) -> None:
        Learner.__init__(self, spec)

    def _gather_for_warmup(self, number: int) -> KVBatchMeta:
        spec = self.job.spec
        turns = spec.turns_per_step // spec.environment.count
        keys = [f"{number}e{slot}_0_{turn}" for slot in range(spec.environment.count) for turn in range(turns + 1)]
        self.gathered.append(KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys]))
        self.calls.append("gather")
        return self.gathered[-1]

    def _compute_log_probs_for_warmup(self, batch: KVBatchMeta) -> None:
        self.calls.append("log-probs")

    def _compute_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.calls.append("values")
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.estimated.append(batch)
        return batch


def run_critic_warm_up(monkeypatch: pytest.MonkeyPatch, **warmup: int) -> WarmingUp:
    monkeypatch.setattr(trainer.tq, "kv_clear", lambda **_: None)
    settings = job(environment__count=4, training__turnsPerStep=32, algorithm__minibatchTurns=8)
    settings["spec"]["algorithm"]["criticWarmup"] = warmup
    learner = WarmingUp(AgentTrainingJob.model_validate(settings).spec)
    learner.sleep_engines = lambda: learner.calls.append("sleep")
    learner.wake_engines = lambda: learner.calls.append(f"wake with version {learner.global_steps}")
    learner._warm_up_critic()
    return learner


class _Manager:
    """verl's manager of engines and their weights."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.mark.feature("Verlog", "critic warm-up")
def test_critic_warm_up_gathers_turns_once_and_updates_only_the_critic(monkeypatch):
    learner = run_critic_warm_up(monkeypatch, batches=3, steps=5)

    assert len(learner.gathered) == 3
    assert learner.estimated == learner.gathered * 5
    assert len(learner.learned) == 5
    assert learner.global_steps == 7


@pytest.mark.feature("Verlog", "sampling of the warm-up")
def test_a_warm_up_update_samples_turns_without_bootstrap_rows(monkeypatch):
    learner = run_critic_warm_up(monkeypatch, batches=3, steps=2, turnsPerStep=40)

    for batch in learner.learned:
        assert len(set(batch.keys)) == len(batch.keys) == 40
        assert all(int(key.rpartition("_")[2]) < 8 for key in batch.keys)
    assert learner.learned[0].keys != learner.learned[1].keys


@pytest.mark.feature("Verlog", "sampling of the warm-up")
@pytest.mark.parametrize(
    ("batches", "turns_per_step", "num_turns"),
    [(40, None, 128), (20, None, 64), (1, None, 8), (3, 96, 96), (1, 30, 24)],
)
def test_a_warm_up_update_takes_a_tenth_of_the_turns_by_default_in_whole_mini_batches(
    monkeypatch, batches, turns_per_step, num_turns
):
    warmup = {"batches": batches, "steps": 1, **({"turnsPerStep": turns_per_step} if turns_per_step else {})}

    assert len(run_critic_warm_up(monkeypatch, **warmup).learned[0].keys) == num_turns


def test_engines_sleep_while_the_critic_warms_up_and_wake_with_the_first_weights(monkeypatch):
    learner = run_critic_warm_up(monkeypatch, batches=2, steps=2)

    update = ["values", "values", "update critic"]
    assert learner.calls == [
        "gather", "gather", "sleep", "log-probs", "log-probs", *update, *update, "wake with version 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "asleep", "awake"),
    [
        (Sync, [("sleep_replicas",)], [("update_weights", 0)]),
        (
            ColocateAsync,
            [("abort_replicas",), ("sleep_replicas",)],
            [("update_weights", 0), ("resume_generation_replicas",)],
        ),
        (SeparateAsync, [], []),
    ],
)
def test_engines_that_share_devices_with_the_trainer_sleep(mode, asleep, awake):
    manager = _Manager()
    stub = SimpleNamespace(checkpoint_manager=manager, global_steps=0)

    mode.sleep_engines(stub)
    assert manager.calls == asleep
    mode.wake_engines(stub)
    assert manager.calls == asleep + awake
