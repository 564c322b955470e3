"""Workers that play whole episodes in environments, and their manager."""

from collections.abc import Sequence
from typing import Unpack

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.journal import create_journal
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams
from turnmill.rollout.verlog.episode_loop import EpisodeLoop


class EpisodeLoopWorker(TrajectoryWorker):
    """Plays whole episodes, each in an environment of its own."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.episode_loop = EpisodeLoop(**self.loop_arguments(config), journal=create_journal(config))

    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        """Play one episode of one task."""
        return await self.episode_loop.run(sampling_params, validate=validate, **row)

    async def close(self) -> None:
        """Close the journal."""
        await self.episode_loop.close()


class EpisodeLoopManager(TrajectoryManager):
    """Distributes the episodes in flight to the workers."""

    worker_class = EpisodeLoopWorker
