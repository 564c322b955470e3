"""Agent loop workers of verl's that play whole trajectories, so many at once as the job allows."""

import asyncio
import math
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import ray
from tensordict import TensorDict

from turnmill.core.trajectory import EpisodeFailure
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.failure import put_failure
from turnmill.rollout.worker import LoopManager, LoopWorker


class TrajectoryWorker(LoopWorker):
    """Runs agent loops, so many at once as the manager allows."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.limit: asyncio.Semaphore | nullcontext[None] = nullcontext()

    @abstractmethod
    async def play(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> EpisodeFailure | list[Any]:
        """One trajectory: its rows, or what ended it. Whatever it raises ends the run."""

    async def allow(self, at_once: int) -> None:
        """Play at most so many trajectories at once."""
        self.limit = asyncio.Semaphore(at_once)

    async def run_row(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> None:
        """A trajectory, once there is room for it."""
        async with self.limit:
            played = await self.play(sampling_params, validate=validate, **row)
        if isinstance(played, EpisodeFailure):
            await put_failure(played, validate=validate, **row)
        else:
            await self._agent_loop_postprocess(played, validate, **row)


class TrajectoryManager(LoopManager):
    """Spreads the trajectories in flight over the workers."""

    _limited = False

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of these tasks and return; their rows go to the TransferQueue."""
        workers = self._allowed_workers()
        size = math.ceil(len(prompts) / len(workers))
        chunks = prompts.split(size)
        ray.get([worker.generate_sequences.remote(chunk) for worker, chunk in zip(workers, chunks, strict=False)])

    def _allowed_workers(self) -> list[Any]:
        """The workers that may play anything, each told once how much."""
        config: Any = self.config
        job = AgentTrainingJob.model_validate_json(config.turnmill.job)
        shares = split_limit(job.spec.max_concurrency, len(self.agent_loop_workers))
        if shares is None:
            return list(self.agent_loop_workers)
        if not self._limited:
            ray.get([w.allow.remote(share) for w, share in zip(self.agent_loop_workers, shares, strict=False)])
            self._limited = True
        return list(self.agent_loop_workers[: len(shares)])


def split_limit(limit: int | None, num_workers: int) -> list[int] | None:
    """How many trajectories each worker may have in flight; workers for which nothing is left are left out."""
    if limit is None:
        return None
    even, more = divmod(limit, num_workers)
    return [share for worker in range(num_workers) if (share := even + (worker < more))]
