"""The number of updates over which learning rates decay, and the limit of the overlong penalty."""

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.jobs import TOOL_JOB, job
from turnmill.jobs import AgentTrainingJob
from turnmill.training.algorithms import trajectory_algorithm_of
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.trajectory import TrajectoryTrainer
from turnmill.training.trainers.turn import TurnTrainer

STEPS = 100


def schedules(trainer: type[RunTrainer], job: AgentTrainingJob, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the numbers of updates over which the learning rates of policy and critic decay."""
    instance = object.__new__(trainer)
    instance.job = job
    empty = {"optim": {"total_training_steps": 0}}
    instance.config = OmegaConf.create({"data": {}, "actor_rollout_ref": {"actor": empty}, "critic": empty})

    def init_dataloader(self: Any) -> None:
        for part in (self.config.actor_rollout_ref.actor, self.config.critic):
            part.optim.total_training_steps = STEPS

    monkeypatch.setattr(PPOTrainer, "_init_dataloader", init_dataloader)
    instance._init_dataloader()
    optimisers = instance.config.actor_rollout_ref.actor.optim, instance.config.critic.optim
    return optimisers[0].total_training_steps, optimisers[1].total_training_steps


def test_critic_warm_up_steps_shorten_the_learning_rate_schedule_of_the_policy(monkeypatch):
    ppo = {"type": "ppo", "criticWarmupSteps": 20}

    assert schedules(TrajectoryTrainer, with_algorithm(ppo), monkeypatch) == (80, 100)
    assert schedules(TrajectoryTrainer, with_algorithm({"type": "grpo"}), monkeypatch) == (100, 100)


@pytest.mark.parametrize(("warmup", "updates"), [({"batches": 2, "steps": 5}, 105), ({"batches": 0, "steps": 5}, 100)])
def test_the_learning_rate_schedule_of_the_critic_includes_its_warm_up(monkeypatch, warmup, updates):
    assert schedules(
        TurnTrainer, AgentTrainingJob.model_validate(job(algorithm__criticWarmup=warmup)), monkeypatch
    ) == (100, updates)


def test_the_overlong_penalty_uses_the_response_limit_of_training_not_of_validation():
    spec = with_algorithm(
        {"type": "dapo", "overlong": {"tokens": 256, "penalty": 1}}, maxResponseLength=1024, valMaxResponseLength=2048
    ).spec
    algorithm = trajectory_algorithm_of(spec.trajectory_algorithm)

    penalties_R = algorithm.penalties(torch.tensor([1024, 700]), spec.agent.response_token_limit)

    assert penalties_R.tolist() == [-1.0, 0.0]


def with_algorithm(algorithm: dict[str, Any], **agent: Any) -> AgentTrainingJob:
    """Return a job of kind `tool` with this algorithm."""
    changes = {f"agent__{field}": value for field, value in agent.items()}
    return AgentTrainingJob.model_validate(job(TOOL_JOB, algorithm=algorithm, **changes))
