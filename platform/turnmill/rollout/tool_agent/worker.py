"""Workers that play episodes with tools, and their manager."""

from collections.abc import Sequence
from typing import Unpack

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.journal import create_journal
from turnmill.rollout.tool_agent.loop import ToolLoop
from turnmill.rollout.tool_agent.rows import verl_rows
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams


class ToolLoopWorker(TrajectoryWorker):
    """Plays episodes with tools."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.tool_loop = ToolLoop(
            **self.loop_arguments(config),
            tool_server_url=config.turnmill.get("tool_server_url"),
            journal=create_journal(config),
        )

    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        """Play one episode of one task."""
        result = await self.tool_loop.run(sampling_params, validate=validate, **row)
        if isinstance(result, EpisodeFailure):
            return result
        return verl_rows(result, log_probs=self.job.spec.tool_agent.logprobs)

    async def close(self) -> None:
        """Release trajectories and close connections."""
        await self.tool_loop.close()


class ToolLoopManager(TrajectoryManager):
    """Distributes the episodes in flight to the workers."""

    worker_class = ToolLoopWorker
