"""What agent loop workers of ours and their managers add to verl's, whatever their loops play."""

import asyncio
import logging
import os
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import ray
import torch
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from turnmill.core.errors import RunFailedError
from turnmill.core.tasks import is_cancelled
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.resources import RESOURCE_SHARE, ray_resource
from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.failure import as_run_failure

log = logging.getLogger(__name__)

_VerlWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


def placed(worker: type["LoopWorker"], config: Any) -> Any:
    """The worker as an actor, on a machine that trains: no slot is lost with one that only rolls out."""
    accelerator = AgentTrainingJob.model_validate_json(config.turnmill.job).spec.resources.train.accelerator
    if accelerator is None:
        return ray.remote(worker)
    return ray.remote(num_cpus=0, resources={ray_resource(accelerator): RESOURCE_SHARE})(worker)


class LoopWorker(_VerlWorker):  # type: ignore[misc, valid-type]
    """One thread, and events in the run folder; rewards come from what is played."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        torch.set_num_threads(1)
        self.folder = RunFolder(config.turnmill.run_dir)
        logs.configure(self.folder, process=f"agent-loop-{os.getpid()}")
        self.job = AgentTrainingJob.model_validate_json(config.turnmill.job)

    def loop_arguments(self, config: Any) -> dict[str, Any]:
        """What every agent loop of a run is made with."""
        return {
            "trainer_config": DictConfigWrap(config),
            "server_manager": self.llm_client,
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "hf_model_type": self.hf_model_type,
            "dataset_cls": self.dataset_cls,
            "data_config": DictConfigWrap(config.data),
            "job": self.job,
            "run_dir": Path(config.turnmill.run_dir),
        }

    @abstractmethod
    async def run_row(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> None:
        """Play what a row of the batch asks for and hand over what came of it. Whatever it raises ends the run."""

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, trace: bool, **row: Any
    ) -> None:
        try:
            await self.run_row(sampling_params, validate=trajectory["validate"], **row)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            # verl logs it and goes on, with other rows in place of these or without them.
            log.exception("Agent loop broke", extra={"row": row.get("index"), "session": row.get("session_id")})
            self.folder.write_failure(as_run_failure(error))
            raise

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        """Nothing to do: environments and tasks give the rewards."""

    async def stay(self) -> None:
        """Return never: it ends with the process."""
        await asyncio.Event().wait()


class LoopManager(AgentLoopManagerTQ):
    """Has the run end where one of its workers dies: verl would wait for the rows of the dead one."""

    worker_class: ClassVar[type[LoopWorker]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = placed(self.worker_class, self.config)
        self._closing = threading.Event()

    async def _init_agent_loop_workers(self) -> None:
        await super()._init_agent_loop_workers()
        threading.Thread(target=self._watch, args=(list(self.agent_loop_workers),), daemon=True).start()

    def _watch(self, workers: list[Any]) -> None:
        try:
            ray.get([worker.__ray_ready__.remote() for worker in workers])
        except ray.exceptions.RayError:
            # The trainer's first call raises what was wrong with it.
            return
        (ended, *_), _ = ray.wait([worker.stay.remote() for worker in workers])
        try:
            ray.get(ended)
        except ray.exceptions.RayError as error:
            if self._closing.is_set():
                return
            folder = RunFolder(self.config.turnmill.run_dir)
            folder.write_failure(
                RunFailedError(
                    f"An agent loop worker died: {str(error).strip().splitlines()[0]} See {folder.logs}; "
                    "`--resume` carries on from the last checkpoint.",
                    "agent_loop_died",
                )
            )

    def close(self) -> None:
        """Have the workers let go of what they hold."""
        self._closing.set()
        ray.get([worker.close.remote() for worker in self.agent_loop_workers], timeout=20)
