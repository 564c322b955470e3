"""Over how many updates learning rates fall, and how long a response may be, whatever verl's configuration says."""

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


def schedules(trainer: type[RunTrainer], of: AgentTrainingJob, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The updates over which the rates of policy and critic fall."""
    made = object.__new__(trainer)
    made.job = of
    empty = {"optim": {"total_training_steps": 0}}
    made.config = OmegaConf.create({"data": {}, "actor_rollout_ref": {"actor": empty}, "critic": empty})

    def verls(self: Any) -> None:
        for part in (self.config.actor_rollout_ref.actor, self.config.critic):
            part.optim.total_training_steps = STEPS

    monkeypatch.setattr(PPOTrainer, "_init_dataloader", verls)
    made._init_dataloader()
    return made.config.actor_rollout_ref.actor.optim.total_training_steps, made.config.critic.optim.total_training_steps


def test_a_policy_that_learns_later_has_fewer_updates_for_its_rate_to_fall_in(monkeypatch):
    ppo = {"type": "ppo", "criticWarmupSteps": 20}

    assert schedules(TrajectoryTrainer, with_algorithm(ppo), monkeypatch) == (80, 100)
    assert schedules(TrajectoryTrainer, with_algorithm({"type": "grpo"}), monkeypatch) == (100, 100)


@pytest.mark.parametrize(("warmup", "updates"), [({"batches": 2, "steps": 5}, 105), ({"batches": 0, "steps": 5}, 100)])
def test_a_critic_s_rate_falls_over_the_warm_up_that_there_is(monkeypatch, warmup, updates):
    assert schedules(
        TurnTrainer, AgentTrainingJob.model_validate(job(algorithm__criticWarmup=warmup)), monkeypatch
    ) == (100, updates)


def test_the_room_of_a_response_is_that_of_training_where_validations_have_more():
    spec = with_algorithm(
        {"type": "dapo", "overlong": {"tokens": 256, "penalty": 1}}, maxResponseLength=1024, valMaxResponseLength=2048
    ).spec
    algorithm = trajectory_algorithm_of(spec.trajectory_algorithm)

    penalties_R = algorithm.penalties(torch.tensor([1024, 700]), spec.agent.response_token_limit)

    assert penalties_R.tolist() == [-1.0, 0.0]


def with_algorithm(algorithm: dict[str, Any], **agent: Any) -> AgentTrainingJob:
    """A job of the agent with tools."""
    changes = {f"agent__{field}": value for field, value in agent.items()}
    return AgentTrainingJob.model_validate(job(TOOL_JOB, algorithm=algorithm, **changes))
