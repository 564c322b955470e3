"""Workers that play episodes of programs, and their manager."""

from collections.abc import Sequence
from typing import Unpack

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.journal import create_journal
from turnmill.rollout.rows import episode_rows
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams


class HarnessWorker(TrajectoryWorker):
    """Plays episodes of programs."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.harness_loop = HarnessLoop(**self.loop_arguments(config), journal=create_journal(config))

    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        """Play one episode of one task."""
        result = await self.harness_loop.run(sampling_params, validate=validate, **row)
        return result if isinstance(result, EpisodeFailure) else episode_rows(result.rows, result.summary)

    async def close(self) -> None:
        """Close the gateway and all connections."""
        await self.harness_loop.close()


class HarnessManager(TrajectoryManager):
    """Distributes the episodes in flight to the workers."""

    worker_class = HarnessWorker
