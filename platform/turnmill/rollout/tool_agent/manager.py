"""Agent loop workers of verl's that play trajectories with tools."""

import asyncio
import logging
import math
from contextlib import nullcontext
from typing import Any

import ray
import transfer_queue as tq
from tensordict import TensorDict

from turnmill.core.errors import RunFailedError, TurnmillError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.tool_agent.journal import Journal, NoJournal, StoreJournal
from turnmill.rollout.tool_agent.loop import Failure, ToolLoop
from turnmill.rollout.tool_agent.rows import verl_rows
from turnmill.rollout.worker import LoopManager, LoopWorker
from turnmill.trajectories.address import with_password
from turnmill.trajectories.journal import RolloutJournal

FAILED = "failed"
"""Status, in its tag, of the key that stands for a trajectory without rows."""

log = logging.getLogger(__name__)


class ToolLoopWorker(LoopWorker):
    """Runs agent loops, so many at once as the manager allows."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.limit: asyncio.Semaphore | nullcontext[None] = nullcontext()
        self.tool_loop = ToolLoop(
            **self.loop_arguments(config),
            tool_server_url=config.turnmill.get("tool_server_url"),
            journal=_journal(config),
        )

    async def allow(self, at_once: int) -> None:
        """Play at most so many trajectories at once."""
        self.limit = asyncio.Semaphore(at_once)

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, trace: bool, **row: Any
    ) -> None:
        validate = trajectory["validate"]
        try:
            async with self.limit:
                outcome = await self.tool_loop.run(sampling_params, validate=validate, **row)
        except Exception as error:
            # verl logs it and goes on with a group that lacks a trajectory.
            log.exception("Agent loop broke", extra={"row": row.get("index"), "session": row.get("session_id")})
            self.tool_loop.folder.write_failure(_as_run_failure(error))
            raise
        if isinstance(outcome, Failure):
            await _put_failure(outcome, validate=validate, **row)
            return
        rows = verl_rows(outcome, log_probs=self.job.spec.tool_agent.logprobs)
        await self._agent_loop_postprocess(rows, validate, **row)

    async def close(self) -> None:
        """Release trajectories and close connections."""
        await self.tool_loop.close()


class ToolLoopManager(LoopManager):
    """Spreads the trajectories in flight over the workers."""

    worker_class = ToolLoopWorker
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
        shares = shares_of(job.spec.tool_agent.max_concurrent_trajectories, len(self.agent_loop_workers))
        if shares is None:
            return list(self.agent_loop_workers)
        if not self._limited:
            ray.get([w.allow.remote(share) for w, share in zip(self.agent_loop_workers, shares, strict=False)])
            self._limited = True
        return list(self.agent_loop_workers[: len(shares)])


def shares_of(limit: int | None, num_workers: int) -> list[int] | None:
    """How many trajectories each worker may have in flight; workers for which nothing is left are left out."""
    if limit is None:
        return None
    even, more = divmod(limit, num_workers)
    return [share for worker in range(num_workers) if (share := even + (worker < more))]


def _journal(config: Any) -> Journal:
    given = config.turnmill
    if (url := given.get("store_url")) is None:
        return NoJournal()
    run, attempt = RunFolder(given.run_dir).run_name(), given.get("attempt")
    return StoreJournal(RolloutJournal.from_url(with_password(url), run, attempt=int(attempt) if attempt else None))


def _as_run_failure(error: Exception) -> RunFailedError:
    if isinstance(error, RunFailedError):
        return error
    cause = "settings" if isinstance(error, TurnmillError) else "rollout"
    return RunFailedError(f"An agent loop broke: {error!r}. The traceback is in logs/.", cause)


async def _put_failure(
    failure: Failure, *, validate: bool, uid: str, session_id: int, global_steps: int, **_: Any
) -> None:
    """A key without data: what failed is counted, and no row of it can get into a batch."""
    await tq.async_kv_put(
        key=f"{uid}_{session_id}_0",
        partition_id="val" if validate else "train",
        tag={
            "status": FAILED,
            "cause": failure.cause,
            "message": failure.message,
            "seconds": dict(failure.seconds),
            "global_steps": global_steps,
        },
    )
