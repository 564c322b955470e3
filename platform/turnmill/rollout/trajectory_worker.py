"""Agent loop workers that play whole episodes, limited in number by the job."""

import asyncio
import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Unpack

import ray
from tensordict import TensorDict

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.failure import put_failure
from turnmill.rollout.row_tags import tag_rows
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import ActorHandle, BatchRow, RunConfig, SamplingParams
from turnmill.rollout.worker import LoopManager, LoopWorker, job_of


class TrajectoryWorker(LoopWorker):
    """Plays episodes, at most as many at once as the manager allows."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.limit: asyncio.Semaphore | nullcontext[None] = nullcontext()

    @abstractmethod
    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        """Play one episode; return its rows, or its failure. Any other exception ends the run."""

    async def set_limit(self, max_episodes: int) -> None:
        """Limit the number of episodes that are played at once."""
        self.limit = asyncio.Semaphore(max_episodes)

    async def run_row(self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]) -> None:
        """Play an episode when the limit allows it, and put its rows or its failure into the queue."""
        async with self.limit:
            played = await self.play(sampling_params, validate=validate, **row)
        if isinstance(played, EpisodeFailure):
            await put_failure(played, validate=validate, **row)
        else:
            if played:
                await tag_rows(played, validate=validate, **row)
            await self._agent_loop_postprocess(played, validate, **row)


class TrajectoryManager(LoopManager):
    """Distributes the episodes in flight to the workers."""

    _limits_set = False

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of a batch and return; rows are put into the TransferQueue."""
        workers = self._workers_in_use()
        chunks = prompts.split(math.ceil(len(prompts) / len(workers)))
        ray.get([worker.generate_sequences.remote(chunk) for worker, chunk in zip(workers, chunks, strict=False)])

    def _workers_in_use(self) -> Sequence[ActorHandle]:
        """Return the workers that may play episodes, after setting the limit of each once."""
        workers = self.agent_loop_workers
        limits = split_limit(job_of(self.config).spec.max_concurrency, len(workers))
        if limits is None:
            return workers
        if not self._limits_set:
            ray.get([worker.set_limit.remote(limit) for worker, limit in zip(workers, limits, strict=False)])
            self._limits_set = True
        return workers[: len(limits)]


def split_limit(limit: int | None, num_workers: int) -> list[int] | None:
    """Return each worker's share of a limit, without workers whose share is 0; None for no limit."""
    if limit is None:
        return None
    share, remainder = divmod(limit, num_workers)
    return [size for worker in range(num_workers) if (size := share + (worker < remainder))]
