"""What the algorithm and the agent ask of verl's configuration."""

from typing import Any

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.algorithm import TurnPpo
from turnmill.jobs.trajectory_algorithms import Dapo, Ppo
from turnmill.training.agent_kinds import agent_kind

LOSS_AVERAGES = {"token": "token-mean", "trajectory": "seq-mean-token-mean"}
# What verl calls the estimators; DAPO's and GiGPO's comparisons are GRPO's.
ESTIMATORS = {
    "ppo": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "dapo": "grpo",
    "gigpo": "grpo",
}


def learning_settings(job: AgentTrainingJob) -> dict[str, Any]:
    """Rows, groups, estimator and critic."""
    of_agent = agent_kind(job.spec.agent).verl_settings(job)
    return of_agent | (_turns(job) if job.spec.learns_from_turns else _trajectories(job))


def _turns(job: AgentTrainingJob) -> dict[str, Any]:
    """What learning from turns asks for: rows of single turns, a critic, and turnmill's own estimator."""
    spec = job.spec
    return _critic(spec.turn_ppo, minibatch=spec.turn_ppo.minibatch_turns, seed=spec.training.seed) | {
        "actor_rollout_ref.actor.ppo_mini_batch_size": spec.turn_ppo.minibatch_turns,
        "algorithm.adv_estimator": "gae",
    }


def _trajectories(job: AgentTrainingJob) -> dict[str, Any]:
    """What learning from whole trajectories asks for: groups, verl's estimators, a critic where one is needed."""
    spec, algorithm = job.spec, job.spec.trajectory_algorithm
    # verl counts a mini-batch in tasks and multiplies by the trajectories of each.
    minibatch = algorithm.minibatch_tasks or spec.tasks_per_step
    settings = {
        "actor_rollout_ref.actor.ppo_mini_batch_size": minibatch,
        "actor_rollout_ref.actor.loss_agg_mode": LOSS_AVERAGES[algorithm.loss_average],
        "algorithm.adv_estimator": ESTIMATORS[algorithm.type],
        "algorithm.norm_adv_by_std_in_grpo": getattr(algorithm, "normalise", True),
        "algorithm.gamma": getattr(algorithm, "gamma", 1.0),
        "critic.enable": False,
    }
    if isinstance(algorithm, Ppo):
        settings |= _critic(algorithm, minibatch=minibatch, seed=spec.training.seed)
        settings["algorithm.lam"] = algorithm.gae_lambda
        # verl names the first step in which the policy learns.
        settings["trainer.critic_warmup"] = algorithm.critic_warmup_steps + 1
    return settings


def _critic(algorithm: TurnPpo | Ppo, *, minibatch: int, seed: int) -> dict[str, Any]:
    return {
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        "critic.fsdp.strategy": "fsdp2",
        "critic.ppo_mini_batch_size": minibatch,
        "critic.cliprange_value": algorithm.value_clip,
        "critic.grad_clip": algorithm.gradient_clip,
        "critic.data_loader_seed": seed,
        "critic.optim.lr": algorithm.critic_learning_rate,
        "critic.optim.weight_decay": algorithm.weight_decay,
        "critic.optim.betas": [0.9, 0.95],
        "critic.optim.lr_scheduler_type": algorithm.learning_rate_schedule,
    }


def sampler_settings(job: AgentTrainingJob) -> dict[str, Any]:
    """What hands the rows of a step to the trainer, where verl's own does not do."""
    sampler, is_sync = "trainer.v1.sampler", job.spec.training.mode == "sync"
    if isinstance(algorithm := job.spec.algorithm, Dapo) and algorithm.dynamic_sampling.max_batches > 1:
        place = ("dynamic_sampling", "FilteringBuffer" if is_sync else "FilteringStepBuffer")
        settings = {f"{sampler}.sampler_kwargs": {"max_batches": algorithm.dynamic_sampling.max_batches}}
    elif not is_sync:
        place, settings = ("replay_buffers", "StepReplayBuffer"), {}
    else:
        return {}
    return settings | {
        f"{sampler}.custom_sampler.path": f"pkg://turnmill.training.{place[0]}",
        f"{sampler}.custom_sampler.name": place[1],
    }
