"""Workers that play groups of episodes of GRL's agents, and their manager."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from tensordict import TensorDict

from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.grl.loop import GrlLoop
from turnmill.rollout.grl.rows import verl_rows
from turnmill.rollout.journal import create_journal
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams, TrajectoryInfo

GROUP_SIZE = "__rollout_n__"
"""Name by which verl reads a group's size from a row of its own."""


@dataclass(slots=True)
class _GroupInProgress:
    """A group whose episodes share a barrier with the other groups of its request."""

    lockstep: Lockstep
    num_waiting: int
    """Number of episodes that have not started."""


class GrlLoopWorker(TrajectoryWorker):
    """Plays episodes; those of one request wait for each other after every turn if `turns` is `synchronous`."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.grl_loop = GrlLoop(**self.loop_arguments(config), journal=create_journal(config))
        self._groups: dict[str, _GroupInProgress] = {}

    async def generate_sequences(self, batch: TensorDict) -> None:
        """Start the episodes of a batch of groups."""
        if self.job.spec.grl_agent.turns == "synchronous":
            sizes = [int(size) for size in _each(batch, GROUP_SIZE)]
            lockstep = Lockstep(sum(sizes))
            uids = _each(batch, "uid")
            self._groups |= {uid: _GroupInProgress(lockstep, size) for uid, size in zip(uids, sizes, strict=True)}
        await super().generate_sequences(batch)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: SamplingParams, trajectory: TrajectoryInfo, trace: bool = False
    ) -> None:
        uid = prompt["uid"]
        try:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        finally:
            if (group := self._groups.pop(uid, None)) is not None:
                # Episodes that verl does not start must not be waited for.
                group.lockstep.leave(group.num_waiting)

    async def play(
        self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        """Play one episode of a group; return its rows, or its failure."""
        group = self._groups.get(row["uid"])
        if group is None:
            return await self._play(sampling_params, validate=validate, lockstep=None, **row)
        group.num_waiting -= 1
        with group.lockstep.taking_part():
            return await self._play(sampling_params, validate=validate, lockstep=group.lockstep, **row)

    async def _play(
        self, sampling_params: SamplingParams, *, validate: bool, lockstep: Lockstep | None, **row: Unpack[BatchRow]
    ) -> EpisodeFailure | Sequence[AgentLoopOutput]:
        played = await self.grl_loop.run(sampling_params, validate=validate, lockstep=lockstep, **row)
        return played if isinstance(played, EpisodeFailure) else verl_rows(played)

    async def close(self) -> None:
        """Close connections."""
        await self.grl_loop.close()


class GrlLoopManager(TrajectoryManager):
    """Distributes groups to the workers."""

    worker_class = GrlLoopWorker


def _each(batch: TensorDict, name: str) -> list[Any]:
    """Return the values of a batch's column that has no tensors."""
    return [getattr(value, "data", value) for value in batch[name]]
