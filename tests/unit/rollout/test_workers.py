"""Limits of workers, and rows that cannot be put into the queue: verl alone would log the error and continue."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import transfer_queue
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.trajectory_worker import TrajectoryWorker
from turnmill.rollout.verlog.turn_loop_worker import TurnLoopWorker
from turnmill.rollout.worker import LoopWorker

ROLLOUT = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}


class EmptyTurnLoop:
    """A turn loop whose episodes have no rows."""

    async def run(self, *_: Any, **__: Any) -> list[Any]:
        """Return no rows."""
        return []


class SlotWorkerWithoutRows(TurnLoopWorker):
    """A turn loop worker whose episodes have no rows."""

    def __init__(self) -> None:
        self.turn_loop = EmptyTurnLoop()


class TrajectoryWorkerWithoutRows(TrajectoryWorker):
    """A trajectory worker whose episodes have no rows."""

    def __init__(self) -> None:
        self.limit = nullcontext()

    async def play(self, *_: Any, **__: Any) -> list[Any]:
        """Return no rows."""
        return []


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the queue in which verl records the status of each prompt."""

    async def put(**_: Any) -> None:
        """Record nothing."""

    monkeypatch.setattr(transfer_queue, "async_kv_put", put)


@pytest.fixture(params=[SlotWorkerWithoutRows, TrajectoryWorkerWithoutRows])
def worker(request: pytest.FixtureRequest, tmp_path) -> LoopWorker:
    instance: LoopWorker = request.param()
    instance.folder = RunFolder(tmp_path)
    instance.config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})
    instance.background_tasks = set()
    return instance


async def start(worker: LoopWorker) -> None:
    """Let verl start the loop of one row."""
    row = {"uid": "a", "index": 0, "global_steps": 1, "agent_name": "any"}
    await worker.generate_sequences(list_of_dict_to_tensordict([row]))
    await asyncio.sleep(0)


async def until_done(worker: LoopWorker) -> None:
    """Wait for the loops that verl has started."""
    async with asyncio.timeout(10):
        await asyncio.gather(*worker.background_tasks, return_exceptions=True)


@pytest.mark.parametrize("error", [ConnectionError("the queue is gone"), asyncio.CancelledError("by another's timer")])
async def test_an_error_while_rows_are_put_into_the_queue_ends_the_run_with_its_cause(worker, error):
    async def fail(*_: Any, **__: Any) -> None:
        raise error

    worker._agent_loop_postprocess = fail

    await start(worker)
    await until_done(worker)

    assert (failure := worker.folder.read_failure()) is not None
    assert str(error) in str(failure)


async def test_cancelled_rows_do_not_end_the_run(worker):
    async def wait(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    worker._agent_loop_postprocess = wait

    await start(worker)
    for task in list(worker.background_tasks):
        task.cancel()
    await until_done(worker)

    assert worker.folder.read_failure() is None


class WaitingTrajectoryWorker(TrajectoryWorkerWithoutRows):
    """A trajectory worker whose episodes wait until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.num_playing = self.num_played = 0

    async def play(self, *_: Any, **__: Any) -> list[Any]:
        """Wait, then return no rows."""
        self.num_playing += 1
        await self.may_end.wait()
        self.num_playing -= 1
        self.num_played += 1
        return []

    async def _agent_loop_postprocess(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.feature("verl-tool", "limit on concurrent trajectories")
async def test_a_worker_plays_no_more_episodes_at_once_than_its_limit():
    worker = WaitingTrajectoryWorker()
    await worker.set_limit(2)
    episodes = [asyncio.create_task(worker.run_row({}, validate=False)) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)

    assert worker.num_playing == 2

    worker.may_end.set()
    await asyncio.gather(*episodes)
    assert worker.num_played == 5
