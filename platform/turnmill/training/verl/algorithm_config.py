"""What the algorithm and the agent ask of verl's configuration."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.algorithm import TurnPpo
from turnmill.jobs.trajectory_algorithms import Dapo, Ppo

PACKAGE = "pkg://"
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
    return _turns(job) if job.spec.algorithm.type == "turn_ppo" else _trajectories(job)


def _turns(job: AgentTrainingJob) -> dict[str, Any]:
    """What learning from turns asks for: rows of single turns, a critic, and turnmill's own estimator."""
    spec, rollout = job.spec, "actor_rollout_ref.rollout"
    return _critic(spec.turn_ppo, minibatch=spec.turn_ppo.minibatch_turns, seed=spec.training.seed) | {
        "data.custom_cls.name": "EnvironmentSlots",
        "data.train_batch_size": spec.environment.count,
        "data.max_prompt_length": spec.verlog.max_prompt_tokens,
        "data.max_response_length": spec.verlog.max_response_tokens,
        "actor_rollout_ref.actor.ppo_mini_batch_size": spec.turn_ppo.minibatch_turns,
        f"{rollout}.n": 1,
        f"{rollout}.max_model_len": spec.verlog.max_prompt_tokens + spec.verlog.max_response_tokens,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.agent.agent_loop_manager_class": "turnmill.rollout.verlog.turn_loop_worker.TurnLoopManager",
        "algorithm.adv_estimator": "gae",
    }


def _trajectories(job: AgentTrainingJob) -> dict[str, Any]:
    """What learning from whole trajectories asks for: groups, verl's estimators, a critic where one is needed."""
    spec, algorithm, rollout = job.spec, job.spec.trajectory_algorithm, "actor_rollout_ref.rollout"
    # verl counts a mini-batch in tasks and multiplies by the trajectories of each.
    minibatch = algorithm.minibatch_tasks or spec.tasks_per_step
    settings = {
        **AGENTS[spec.agent.type](job),
        "data.custom_cls.name": "TaskRows",
        "data.train_batch_size": spec.tasks_per_step,
        "actor_rollout_ref.actor.ppo_mini_batch_size": minibatch,
        "actor_rollout_ref.actor.loss_agg_mode": LOSS_AVERAGES[algorithm.loss_average],
        f"{rollout}.n": spec.group_size,
        f"{rollout}.val_kwargs.n": 1,
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


def _episodes(job: AgentTrainingJob) -> dict[str, Any]:
    """Whole episodes in environments, with a row per turn."""
    agent, rollout = job.spec.verlog, "actor_rollout_ref.rollout"
    return {
        "data.max_prompt_length": agent.max_prompt_tokens,
        "data.max_response_length": agent.max_response_tokens,
        f"{rollout}.max_model_len": agent.max_prompt_tokens + agent.max_response_tokens,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.agent.agent_loop_manager_class": "turnmill.rollout.verlog.episode_loop_worker.EpisodeLoopManager",
    }


def _contexts(job: AgentTrainingJob) -> dict[str, Any]:
    """Trajectories with tools, in a context that grows."""
    agent, rollout = job.spec.tool_agent, "actor_rollout_ref.rollout"
    max_response = max(agent.max_response_length, agent.val_max_response_length or 0)
    return {
        "data.max_prompt_length": agent.max_prompt_length,
        "data.max_response_length": max_response,
        f"{rollout}.max_model_len": agent.max_prompt_length + max_response,
        f"{rollout}.calculate_log_probs": agent.logprobs,
        f"{rollout}.agent.agent_loop_manager_class": "turnmill.rollout.tool_agent.worker.ToolLoopManager",
    }


def _conversations(job: AgentTrainingJob) -> dict[str, Any]:
    """verl's own agent loops, by verl's own names."""
    agent, rollout = job.spec.multi_turn_agent, "actor_rollout_ref.rollout"
    multi_turn, loops = f"{rollout}.multi_turn", f"{rollout}.agent"
    return {
        "data.max_prompt_length": agent.max_prompt_length,
        "data.max_response_length": agent.max_response_length,
        "data.return_multi_modal_inputs": agent.return_multi_modal_inputs,
        f"{rollout}.max_model_len": agent.max_prompt_length + agent.max_response_length,
        f"{rollout}.calculate_log_probs": True,
        f"{multi_turn}.enable": True,
        f"{multi_turn}.tool_config_path": file_of("toolConfigPath", agent.tool_config_path),
        f"{multi_turn}.function_tool_path": file_of("functionToolPath", agent.function_tool_path),
        f"{multi_turn}.format": agent.format,
        f"{multi_turn}.max_assistant_turns": agent.max_assistant_turns,
        f"{multi_turn}.max_user_turns": agent.max_user_turns,
        f"{multi_turn}.max_parallel_calls": agent.max_parallel_calls,
        f"{multi_turn}.max_tool_response_length": agent.max_tool_response_length,
        f"{multi_turn}.tool_response_truncate_side": agent.tool_response_truncate_side,
        f"{multi_turn}.use_inference_chat_template": agent.use_inference_chat_template,
        f"{multi_turn}.tokenization_sanity_check_mode": agent.tokenization_sanity_check_mode,
        f"{loops}.default_agent_loop": agent.default_agent_loop,
        f"{loops}.agent_loop_config_path": file_of("agentLoopConfigPath", agent.agent_loop_config_path),
        f"{loops}.agent_loop_manager_class": (
            agent.agent_loop_manager_class or "turnmill.rollout.multi_turn.worker.MultiTurnManager"
        ),
    }


def _groups(job: AgentTrainingJob) -> dict[str, Any]:
    """Groups of GRL's agents, each with a size of its own."""
    agent, rollout = job.spec.grl_agent, "actor_rollout_ref.rollout"
    greedy = agent.validation_sampling == "greedy"
    return {
        "data.max_prompt_length": agent.max_prompt_length,
        "data.max_response_length": agent.max_response_length,
        f"{rollout}.max_model_len": agent.max_prompt_length + agent.max_response_length,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.val_kwargs.temperature": 0 if greedy else agent.temperature,
        f"{rollout}.val_kwargs.do_sample": not greedy,
        f"{rollout}.agent.agent_loop_manager_class": "turnmill.rollout.grl.worker.GrlLoopManager",
    }


def file_of(field: str, path: str | None) -> str | None:
    """A file that the agent names, also as `pkg://package/path` within an installed package."""
    if path is None:
        return None
    place = f"spec.agent.{field}: {path!r}"
    if path.startswith(PACKAGE):
        package, _, rest = path.removeprefix(PACKAGE).partition("/")
        try:
            path = str(files(package) / rest)
        except ModuleNotFoundError as error:
            raise SettingsError(f"{place}: there is no package {package!r}. Install it, or give a path.") from error
    if not Path(path).is_file():
        raise SettingsError(f"{place} is no file. Give the path that it has where the run goes on.")
    return path


AGENTS = {"verlog": _episodes, "tool": _contexts, "multi_turn": _conversations, "grl": _groups}
"""What each agent asks of verl where it learns from whole trajectories."""


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
