"""Agent loop workers of verl's that play whole episodes in environments."""

from typing import Any

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verlog.episode_loop import EpisodeLoop


class EpisodeLoopWorker(TrajectoryWorker):
    """Plays whole episodes, each in an environment of its own."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.episode_loop = EpisodeLoop(**self.loop_arguments(config))

    async def play(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> EpisodeFailure | list[Any]:
        """One episode of one task."""
        return await self.episode_loop.run(sampling_params, validate=validate, **row)

    async def close(self) -> None:
        """Nothing is held between episodes."""


class EpisodeLoopManager(TrajectoryManager):
    """Spreads the episodes in flight over the workers."""

    worker_class = EpisodeLoopWorker
