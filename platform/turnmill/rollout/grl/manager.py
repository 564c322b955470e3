"""Agent loop workers of verl's that play groups of GRL's agents."""

from typing import Any

from tensordict import TensorDict

from turnmill.rollout.failure import Failure
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.grl.loop import GrlLoop
from turnmill.rollout.grl.rows import verl_rows
from turnmill.rollout.tool_agent.manager import journal_of
from turnmill.rollout.trajectory_workers import TrajectoryManager, TrajectoryWorker

GROUP_SIZE = "__rollout_n__"
"""What verl reads the size of a group from, where it is a prompt's own."""


class GrlLoopWorker(TrajectoryWorker):
    """Plays episodes; those that were asked for together take their turns together."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.grl_loop = GrlLoop(**self.loop_arguments(config), journal=journal_of(config))
        self._locksteps: dict[str, Lockstep] = {}

    async def generate_sequences(self, batch: TensorDict) -> None:
        """Start the episodes of these groups."""
        if self.job.spec.grl_agent.turns == "synchronous":
            lockstep = Lockstep(sum(_each(batch, GROUP_SIZE)))
            self._locksteps |= dict.fromkeys(_each(batch, "uid"), lockstep)
        await super().generate_sequences(batch)

    async def _run_prompt(self, prompt: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        uid = prompt["uid"]
        try:
            await super()._run_prompt(prompt, *args, **kwargs)
        finally:
            self._locksteps.pop(uid, None)

    async def play(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> Failure | list[Any]:
        """One episode of a group."""
        lockstep = self._locksteps.get(row["uid"])
        if lockstep is None:
            return await self._play(sampling_params, validate=validate, lockstep=None, **row)
        with lockstep.taking_part():
            return await self._play(sampling_params, validate=validate, lockstep=lockstep, **row)

    async def _play(self, sampling_params: dict[str, Any], **row: Any) -> Failure | list[Any]:
        played = await self.grl_loop.run(sampling_params, **row)
        return played if isinstance(played, Failure) else list(verl_rows(played))

    async def close(self) -> None:
        """Close connections."""
        await self.grl_loop.close()


class GrlLoopManager(TrajectoryManager):
    """Spreads groups over the workers."""

    worker_class = GrlLoopWorker


def _each(batch: TensorDict, name: str) -> list[Any]:
    """A column of a batch that holds no tensors, value by value."""
    return [getattr(value, "data", value) for value in batch[name]]
