"""The Ray actor that holds the trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from turnmill.jobs import AgentTrainingJob


@ray.remote
class TurnTaskRunner:
    """Builds the configuration, the trainer and the agent loops, and trains; one per run."""

    def make_model(self, job_json: str, run_dir: str, cache_dir: str) -> str:
        """The folder of the model to start from; a warm start is made here unless `cache_dir` has it."""
        from turnmill.jobs import AgentTrainingJob
        from turnmill.observability.run_folder import RunFolder
        from turnmill.runs.preparation import ensure_model

        job = AgentTrainingJob.model_validate_json(job_json)
        return str(ensure_model(job, RunFolder(run_dir), lambda _: None, cache_dir=Path(cache_dir)))

    def run(self, job_json: str, model: str, run_dir: str, device: str, addresses: Mapping[str, str]) -> None:
        """Train to the last step; raises what went wrong."""
        import torch

        torch.set_num_threads(1)
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.utils.logging_utils import configure_verl_logging

        from turnmill.jobs import AgentTrainingJob
        from turnmill.observability import logs
        from turnmill.observability.run_folder import RunFolder
        from turnmill.training.verl.config import build_verl_config
        from turnmill.training.verl.patches import queue_controller

        configure_verl_logging()
        logs.configure(RunFolder(run_dir), process="trainer")
        job = AgentTrainingJob.model_validate_json(job_json)
        config = build_verl_config(job, model=Path(model), run_dir=Path(run_dir), device=device)
        OmegaConf.set_struct(config, False)
        config.turnmill.update(dict(addresses))
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        _require_the_platform(device)
        with queue_controller.applied():
            tq.init(config.transfer_queue)
        trainer: Any = None
        succeeded = False
        try:
            trainer_class, manager_class = classes_of(job)
            trainer = trainer_class(config=config)
            trainer.init()
            manager = _agent_loops(manager_class, config, trainer)
            trainer.fit(manager)
            manager.close()
            succeeded = True
        finally:
            if (tracking := getattr(trainer, "logger", None)) is not None:
                tracking.finish(exit_code=0 if succeeded else 1)
            tq.close()


def classes_of(job: "AgentTrainingJob") -> tuple[Any, Any]:
    """The trainer and the manager of agent loops for a kind of agent."""
    if job.spec.agent.type == "tool":
        from turnmill.rollout.tool_agent.worker import ToolLoopManager
        from turnmill.training.trainers import trajectory as trajectory_trainer

        return trajectory_trainer.TRAINERS[job.spec.training.mode], ToolLoopManager
    if job.spec.agent.type == "multi_turn":
        from turnmill.rollout.multi_turn.worker import manager_class
        from turnmill.training.trainers import trajectory as trajectory_trainer

        manager = manager_class(job.spec.multi_turn_agent.agent_loop_manager_class)
        return trajectory_trainer.TRAINERS[job.spec.training.mode], manager
    if job.spec.agent.type == "grl":
        from turnmill.rollout.grl.worker import GrlLoopManager
        from turnmill.training.grl.trainer import TRAINERS

        return TRAINERS[job.spec.training.mode], GrlLoopManager
    if job.spec.algorithm.type != "turn_ppo":
        from turnmill.rollout.verlog.episode_loop_worker import EpisodeLoopManager
        from turnmill.training.trainers import trajectory as trajectory_trainer

        return trajectory_trainer.TRAINERS[job.spec.training.mode], EpisodeLoopManager
    from turnmill.rollout.verlog.turn_loop_worker import TurnLoopManager
    from turnmill.training.trainers import turn as trainer

    return trainer.TRAINERS[job.spec.training.mode], TurnLoopManager


def _agent_loops(manager_class: Any, config: Any, trainer: Any) -> Any:
    return manager_class.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def _require_the_platform(device: str) -> None:
    """verl only logs a plug-in that fails to load, at DEBUG: without this a run would fail much later."""
    from verl.plugin.platform import get_platform

    actual = get_platform().device_name
    if actual != device:
        raise RuntimeError(
            f"verl runs on {actual!r} where the job asks for {device!r}: the plug-in turnmill.training.verl.plugin "
            "did not load. Install turnmill with `pip install -e .` so that its entry points are known."
        )
