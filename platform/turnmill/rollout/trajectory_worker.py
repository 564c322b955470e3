"""Agent loop workers that play whole episodes, limited in number by the job."""

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from typing import Unpack
from uuid import uuid4

import ray
import transfer_queue as tq
from ray.exceptions import RayError
from tensordict import TensorDict

from turnmill.core.errors import first_line
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.actor_deaths import LOSSES
from turnmill.rollout.failure import put_failure
from turnmill.rollout.prompts_in_flight import MAX_TRIES, PromptsInFlight
from turnmill.rollout.row_tags import tag_rows
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import ActorHandle, BatchRow, RunConfig, SamplingParams
from turnmill.rollout.worker import EndedPrompt, LoopManager, LoopWorker, Replacement, job_of

log = logging.getLogger(__name__)


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
    """Distributes the episodes in flight to the workers, and those of a worker that dies to the one that replaces it.

    A worker that dies is replaced within the run. The new one carries trajectories on from the journal; without one, it
    plays them from their beginning.
    """

    _limits_set = False

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._in_flight = PromptsInFlight()
        self._idle_deaths = 0

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of a batch and return; rows are put into the TransferQueue."""
        workers, calls = self._workers_in_use(), []
        for index, chunk in enumerate(prompts.split(math.ceil(len(prompts) / len(workers)))):
            self._in_flight.add(index, chunk)
            calls.append(workers[index].generate_sequences.remote(chunk))
        wait_for(calls)

    def forget(self, ended: Sequence[EndedPrompt]) -> None:
        """Forget prompts whose end a worker has reported."""
        self._in_flight.end(ended)

    def replace_worker(self, index: int, error: RayError) -> Replacement:
        """Replace a worker that has died, and let the new one play what the queue does not have.

        Raises RunFailedError if a prompt has been sent too often, if no worker stays alive, or if a manager of the
        user's own has sent prompts in its own way.
        """
        # It may be out of reach, but alive.
        ray.kill(self.agent_loop_workers[index])
        statuses = tq.kv_list() or {}
        ended = self._in_flight.take_ended(index, statuses)
        again_rows = self._in_flight.rows_of(index, statuses)
        self._idle_deaths = 0 if ended or self._in_flight.has_any(index) else self._idle_deaths + 1
        exhausted = self._in_flight.is_exhausted(index) or self._idle_deaths >= MAX_TRIES
        if exhausted or self._in_flight.unknown(statuses) or not self.can_go_on_after(ended):
            raise self.death_of_worker(error) from error
        for partition, keys in again_rows.items():
            # Played again, a trajectory may have fewer rows.
            tq.kv_clear(keys=keys, partition_id=partition)
        worker = self._new_worker(index)
        self.agent_loop_workers[index] = worker
        again = self._in_flight.send_again(index)
        log.warning(
            "Agent loop worker replaced",
            extra={"worker": index, "prompts": sum(map(len, again)), "error": first_line(error)},
        )
        for batch in again:
            wait_for([worker.generate_sequences.remote(batch)])
        return Replacement(worker, ended)

    def can_go_on_after(self, ended: Sequence[EndedPrompt]) -> bool:
        """Return whether another worker can go on after prompts whose end the dead one had not reported."""
        return True

    def _new_worker(self, index: int) -> ActorHandle:
        """Return a new worker, made as verl makes those of the beginning."""
        worker = self.agent_loop_workers_class.options(name=f"agent_loop_worker_{index}_{uuid4().hex[:8]}").remote(
            self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles
        )
        limits = self._limits()
        if self._limits_set and limits is not None and index < len(limits):
            worker.set_limit.remote(limits[index])
        return worker

    def _workers_in_use(self) -> Sequence[ActorHandle]:
        """Return the workers that may play episodes, after setting the limit of each once."""
        workers = self.agent_loop_workers
        limits = self._limits()
        if limits is None:
            return workers
        if not self._limits_set:
            ray.get([worker.set_limit.remote(limit) for worker, limit in zip(workers, limits, strict=False)])
            self._limits_set = True
        return workers[: len(limits)]

    def _limits(self) -> list[int] | None:
        return split_limit(job_of(self.config).spec.max_concurrency, len(self.agent_loop_workers))


def wait_for(calls: Sequence[Awaitable[object]]) -> None:
    """Wait until workers have started what they were sent; what a dead one was sent goes to its replacement."""
    for call in calls:
        try:
            ray.get(call)
        except LOSSES as error:
            log.warning("Agent loop worker does not answer", extra={"error": first_line(error)})


def split_limit(limit: int | None, num_workers: int) -> list[int] | None:
    """Return each worker's share of a limit, without workers whose share is 0; None for no limit."""
    if limit is None:
        return None
    share, remainder = divmod(limit, num_workers)
    return [size for worker in range(num_workers) if (size := share + (worker < remainder))]
