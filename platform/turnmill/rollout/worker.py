"""Base classes of agent loop workers and their managers, which extend verl's."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import ray
import torch
from ray.exceptions import RayError

from turnmill.core.errors import RunFailedError, first_line
from turnmill.core.garbage import collect_rarely
from turnmill.core.tasks import is_cancelled
from turnmill.jobs import AgentTrainingJob, job_from_json
from turnmill.jobs.resources import RESOURCE_SHARE, ray_resource
from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.writer import writer_id
from turnmill.rollout.actor_deaths import LOSSES
from turnmill.rollout.failure import as_run_failure
from turnmill.rollout.verl_classes import AgentLoopManagerTQ, AgentLoopOutput, AgentLoopWorkerTQ, DictConfigWrap
from turnmill.rollout.verl_types import ActorClass, ActorHandle, BatchRow, RunConfig, SamplingParams, TrajectoryInfo

log = logging.getLogger(__name__)


def job_of(config: RunConfig) -> AgentTrainingJob:
    """Return the job of a run."""
    return job_from_json(config.turnmill.job)


def actor_class(worker: type["LoopWorker"], config: RunConfig) -> ActorClass:
    """Return the worker as a Ray actor class for training machines, as environment slots must outlive rollout
    machines."""
    accelerator = job_of(config).spec.resources.train.accelerator
    made: ActorClass
    if accelerator is None:
        made = ray.remote(worker)
    else:
        made = ray.remote(num_cpus=0, resources={ray_resource(accelerator): RESOURCE_SHARE})(worker)
    return made


@dataclass(frozen=True, slots=True)
class EndedPrompt:
    """A prompt whose trajectories have all ended, and are in the queue."""

    uid: str
    step: int
    validation: bool


class LoopWorker(AgentLoopWorkerTQ):
    """A worker with one thread and logs in the run folder, whose exceptions end the run."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        torch.set_num_threads(1)
        self.folder = RunFolder(config.turnmill.run_dir)
        logs.configure(self.folder, process=f"agent-loop-{writer_id()}")
        self._ended: list[EndedPrompt] = []
        self._num_forgotten = 0
        self._more_ended = asyncio.Event()
        self.job = job_of(config)
        collect_rarely()

    def loop_arguments(self, config: RunConfig) -> dict[str, Any]:
        """Return the arguments of every agent loop of a run."""
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
    async def run_row(self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]) -> None:
        """Play the episode or segment of a row, and put the result into the queue. Exceptions end the run."""

    async def _run_agent_loop(
        self,
        sampling_params: SamplingParams,
        trajectory: TrajectoryInfo,
        *,
        agent_name: str,
        trace: bool,
        **row: Unpack[BatchRow],
    ) -> None:
        try:
            await self.run_row(sampling_params, validate=trajectory["validate"], **row)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            # verl logs it and continues, with other rows or without these.
            log.exception("Agent loop broke", extra={"row": row.get("index"), "session": row.get("session_id")})
            self.folder.write_failure(as_run_failure(error))
            raise

    async def _compute_score(self, outputs: Sequence[AgentLoopOutput], kwargs: dict[str, object]) -> None:
        """Do nothing: environments and tasks give the rewards."""

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: SamplingParams, trajectory: TrajectoryInfo, trace: bool = False
    ) -> None:
        ended = EndedPrompt(prompt["uid"], int(prompt["global_steps"]), validation=trajectory["validate"])
        slot = prompt.get("slot")
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        self._ended.append(ended if slot is None else self.end_of_segment(ended, int(slot)))
        self._more_ended.set()

    def end_of_segment(self, ended: EndedPrompt, slot: int) -> EndedPrompt:
        """Return what is reported of a prompt that is a slot's turns of a step, or an episode of a validation."""
        return ended

    async def ended_prompts(self, first: int) -> Sequence[EndedPrompt]:
        """Return the prompts that ended, from number `first` on; wait for one that has. Forget earlier ones."""
        del self._ended[: first - self._num_forgotten]
        self._num_forgotten = first
        while not self._ended:
            self._more_ended.clear()
            await self._more_ended.wait()
        return list(self._ended)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A worker in the place of one that has died."""

    worker: ActorHandle
    ended: Sequence[EndedPrompt]
    """Prompts whose end the dead worker had not reported."""


class LoopManager(AgentLoopManagerTQ):
    """A manager that does not wait for the rows of a worker that has died, as verl would."""

    worker_class: ClassVar[type[LoopWorker]]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = actor_class(self.worker_class, self.config)

    def forget(self, ended: Sequence[EndedPrompt]) -> None:
        """Forget prompts whose end a worker has reported."""

    @abstractmethod
    def replace_worker(self, index: int, error: RayError) -> Replacement:
        """Replace a worker that has died. Raises RunFailedError if the run cannot go on."""

    def death_of_worker(self, error: RayError) -> RunFailedError:
        """Return the failure of a run that cannot go on without the worker; the run folder has it then."""
        folder = RunFolder(self.config.turnmill.run_dir)
        failure = RunFailedError(
            f"An agent loop worker died: {first_line(error)} See {folder.logs}; "
            "`--resume` carries on from the last checkpoint.",
            "agent_loop_died",
        )
        folder.write_failure(failure)
        return failure

    def close(self) -> None:
        """Close the workers' environments and connections; what a dead worker had has ended with it."""
        for reference in [worker.close.remote() for worker in self.agent_loop_workers]:
            try:
                ray.get(reference, timeout=20)
            except LOSSES as error:
                log.warning("An agent loop worker had died before it was closed", extra={"what": first_line(error)})
