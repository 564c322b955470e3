"""Agent loop workers of verl's that play trajectories with tools."""

from typing import Any

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.journal import create_journal
from turnmill.rollout.tool_agent.loop import ToolLoop
from turnmill.rollout.tool_agent.rows import verl_rows
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker


class ToolLoopWorker(TrajectoryWorker):
    """Plays trajectories with tools."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.tool_loop = ToolLoop(
            **self.loop_arguments(config),
            tool_server_url=config.turnmill.get("tool_server_url"),
            journal=create_journal(config),
        )

    async def play(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> EpisodeFailure | list[Any]:
        """One trajectory of one task."""
        result = await self.tool_loop.run(sampling_params, validate=validate, **row)
        if isinstance(result, EpisodeFailure):
            return result
        return list(verl_rows(result, log_probs=self.job.spec.tool_agent.logprobs))

    async def close(self) -> None:
        """Release trajectories and close connections."""
        await self.tool_loop.close()


class ToolLoopManager(TrajectoryManager):
    """Spreads the trajectories in flight over the workers."""

    worker_class = ToolLoopWorker
