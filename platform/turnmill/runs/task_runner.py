"""Ray actor that runs the trainer."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from turnmill.core.garbage import collect_rarely


@ray.remote
class TurnTaskRunner:
    """Builds configuration, trainer and agent loops, and trains; one per run."""

    def make_model(self, job_json: str, run_dir: str, cache_dir: str) -> str:
        """Return the folder of the initial model; a warm start is made here unless `cache_dir` has it."""
        from turnmill.jobs import job_from_json
        from turnmill.observability.run_folder import RunFolder
        from turnmill.runs.preparation import ensure_model

        job = job_from_json(job_json)
        return str(ensure_model(job, RunFolder(run_dir), lambda _: None, cache_dir=Path(cache_dir)))

    def make_reward_model(self, job_json: str, cache_dir: str) -> str | None:
        """Return the folder of the model that gives rewards; None for a job without one."""
        from turnmill.jobs import job_from_json
        from turnmill.runs.preparation import ensure_reward_model

        folder = ensure_reward_model(job_from_json(job_json), lambda _: None, cache_dir=Path(cache_dir))
        return None if folder is None else str(folder)

    def fine_tune(self, job_json: str, model: str, run_dir: str, device: str, target: str) -> None:
        """Fine-tune the initial model as `model.fineTune` says, and write it to the folder `target`."""
        from turnmill.jobs import job_from_json
        from turnmill.observability import logs
        from turnmill.observability.run_folder import RunFolder
        from turnmill.training.sft.fine_tuned_model import make_fine_tuned

        logs.configure(RunFolder(run_dir), process="fine-tuning")
        _require_the_platform(device)
        make_fine_tuned(
            job_from_json(job_json), model=Path(model), folder=RunFolder(run_dir), device=device, target=Path(target)
        )

    def run(
        self, job_json: str, model: str, reward_model: str | None, run_dir: str, device: str,
        addresses: Mapping[str, str], attempt: int | None = None,
    ) -> None:  # fmt: skip
        """Train to the last step. Raises the error of the training.

        `attempt` is the number of this attempt at the run; by default the one in the environment.
        """
        from turnmill.training.recorder import ATTEMPT

        if attempt is not None:
            # Ray's processes, of which this one inherits the others, may be of an earlier attempt.
            os.environ[ATTEMPT] = str(attempt)
        import torch

        torch.set_num_threads(1)
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.utils.logging_utils import configure_verl_logging

        from turnmill.jobs import job_from_json
        from turnmill.observability import logs
        from turnmill.observability.run_folder import RunFolder
        from turnmill.runs.memory_settings import with_memory_settings
        from turnmill.runs.queue_deaths import queue_deaths_noticed
        from turnmill.runs.reward_servers import reward_servers
        from turnmill.training.agent_kinds import agent_kind
        from turnmill.training.verl.config import build_verl_config
        from turnmill.training.verl.megatron_config import require_packages
        from turnmill.training.verl.patches import queue_controller, queue_decoding

        configure_verl_logging()
        logs.configure(RunFolder(run_dir), process="trainer")
        job = job_from_json(job_json)
        if job.spec.fine_tuning is not None:
            from turnmill.training.sft.trainer import SftTrainer

            _require_the_platform(device)
            SftTrainer(job, model=Path(model), run_dir=Path(run_dir), device=device).fit()
            return
        require_packages(job)
        if device == "cuda":
            job = with_memory_settings(job, Path(model), ray.nodes())
        config = build_verl_config(job, model=Path(model), run_dir=Path(run_dir), device=device)
        OmegaConf.set_struct(config, False)
        config.turnmill.update(dict(addresses))
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        _require_the_platform(device)
        queue_decoding.apply()
        with queue_controller.applied():
            tq.init(config.transfer_queue)
        collect_rarely()
        trainer: Any = None
        succeeded = False
        try:
            kind = agent_kind(job.spec.agent)
            with ExitStack() as stack:
                stack.enter_context(queue_deaths_noticed(RunFolder(run_dir)))
                trainer = kind.trainer_class(job)(config=config)
                trainer.init()
                manager = _agent_loops(kind.manager_class(job), config, trainer)
                if reward_model is not None:
                    workers = trainer.actor_rollout_wg.workers
                    stack.enter_context(reward_servers(job, Path(reward_model), RunFolder(run_dir), device, workers))
                trainer.fit(manager)
            manager.close()
            succeeded = True
        finally:
            if (tracking := getattr(trainer, "logger", None)) is not None:
                tracking.finish(exit_code=0 if succeeded else 1)
            tq.close()


def _agent_loops(manager_class: Any, config: Any, trainer: Any) -> Any:
    return manager_class.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def _require_the_platform(device: str) -> None:
    """Raise if the CPU platform is missing: verl logs a plug-in that fails to load only at DEBUG."""
    from verl.plugin.platform import get_platform

    actual = get_platform().device_name
    if actual != device:
        raise RuntimeError(
            f"verl runs on {actual!r} where the job asks for {device!r}: the plug-in turnmill.training.verl.plugin "
            "did not load. Install turnmill with `pip install -e .` so that its entry points are known."
        )
