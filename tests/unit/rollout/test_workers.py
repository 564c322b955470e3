"""What a worker does with a row that it cannot hand over: verl alone would log it and go on without the row."""

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


class Turns:
    """Stands where the turn loop would."""

    async def run(self, *_: Any, **__: Any) -> list[Any]:
        """No rows."""
        return []


class SlotWorker(TurnLoopWorker):
    """Plays slots, as far as a hand-over goes."""

    def __init__(self) -> None:
        self.turn_loop = Turns()


class WholeWorker(TrajectoryWorker):
    """Plays trajectories, as far as a hand-over goes."""

    def __init__(self) -> None:
        self.limit = nullcontext()

    async def play(self, *_: Any, **__: Any) -> list[Any]:
        """No rows."""
        return []


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl notes there what became of each prompt."""

    async def put(**_: Any) -> None:
        """Nothing to note."""

    monkeypatch.setattr(transfer_queue, "async_kv_put", put)


@pytest.fixture(params=[SlotWorker, WholeWorker])
def worker(request: pytest.FixtureRequest, tmp_path) -> LoopWorker:
    made: LoopWorker = request.param()
    made.folder = RunFolder(tmp_path)
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})
    made.background_tasks = set()
    return made


async def start(worker: LoopWorker) -> None:
    """Have verl run the loop of one row."""
    row = {"uid": "a", "index": 0, "global_steps": 1, "agent_name": "any"}
    await worker.generate_sequences(list_of_dict_to_tensordict([row]))
    await asyncio.sleep(0)


async def until_done(worker: LoopWorker) -> None:
    """Wait for what verl has started."""
    async with asyncio.timeout(10):
        await asyncio.gather(*worker.background_tasks, return_exceptions=True)


@pytest.mark.parametrize("error", [ConnectionError("the queue is gone"), asyncio.CancelledError("by another's timer")])
async def test_an_error_while_rows_are_handed_over_ends_the_run_with_its_cause(worker, error):
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
