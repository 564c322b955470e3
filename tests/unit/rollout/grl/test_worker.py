"""Workers that synchronise the turns of a group of episodes."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import transfer_queue
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from support.grl_jobs import grl_job
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.grl.worker import GROUP_SIZE, GrlLoopWorker

ROLLOUT = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}


class TwoTurns:
    """A loop of two turns that records turns in the order in which they begin."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    async def run(self, sampling_params: Any, *, lockstep: Lockstep | None, **_: Any) -> EpisodeFailure:
        """Play two turns and fail."""
        for turn in (1, 2):
            if lockstep is not None:
                await lockstep.wait()
            self.begun.append(turn)
        return EpisodeFailure("episode", "environment", "", 2, {})


def worker(turns: str) -> GrlLoopWorker:
    """Return a worker without a run that can play groups."""
    instance = GrlLoopWorker.__new__(GrlLoopWorker)
    instance.job = grl_job(turns=turns)
    instance.config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})
    instance.grl_loop = TwoTurns()
    instance.limit = nullcontext()
    instance.background_tasks = set()
    instance._groups = {}
    return instance


async def play(grl_worker: GrlLoopWorker, *sizes: int) -> list[int]:
    """Play groups of these sizes in one request; return the turns in the order in which they began."""
    rows = [{"uid": f"group{i}", "index": i, "global_steps": 1, "agent_name": "grl", GROUP_SIZE: size}
            for i, size in enumerate(sizes)]  # fmt: skip
    await grl_worker.generate_sequences(list_of_dict_to_tensordict(rows))
    async with asyncio.timeout(10):
        await asyncio.gather(*grl_worker.background_tasks, return_exceptions=True)
    return grl_worker.grl_loop.begun


@pytest.fixture(autouse=True)
def refused_keys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that the queue refuses."""
    keys: set[str] = set()

    async def put(*, key: str, **_: Any) -> None:
        if key in keys:
            raise ConnectionError

    monkeypatch.setattr(transfer_queue, "async_kv_put", put)
    return keys


@pytest.mark.feature("GRL", "synchronous turns")
@pytest.mark.parametrize(
    ("turns", "begun"), [("synchronous", [1, 1, 1, 2, 2, 2]), ("asynchronous", [1, 2, 1, 2, 1, 2])]
)
async def test_episodes_of_one_request_wait_for_each_other_in_synchronous_turns(turns, begun):
    assert await play(worker(turns), 1, 2) == begun


async def test_a_group_that_verl_drops_before_it_begins_is_not_awaited(refused_keys):
    refused_keys.add("group0")

    assert await play(worker("synchronous"), 3, 2) == [1, 1, 2, 2]


async def test_episodes_of_separate_requests_do_not_wait_for_each_other():
    grl_worker = worker("synchronous")

    assert await play(grl_worker, 2) == [1, 1, 2, 2]
    assert await play(grl_worker, 1) == [1, 1, 2, 2, 1, 2]
