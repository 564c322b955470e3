"""Limits of workers, rows that cannot be put into the queue, and workers that die: verl alone would go on or wait."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import transfer_queue
from omegaconf import OmegaConf
from ray.exceptions import OutOfMemoryError, RayActorError
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from turnmill.core import garbage
from turnmill.core.errors import RunFailedError
from turnmill.jobs import load_job
from turnmill.jobs.resources import RESOURCE_SHARE
from turnmill.observability import logs
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout import trajectory_worker
from turnmill.rollout.prompts_in_flight import MAX_TRIES
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_classes import AgentLoopManagerTQ, AgentLoopWorkerTQ
from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.verlog.turn_loop_worker import EndedSegment, TurnLoopManager, TurnLoopWorker
from turnmill.rollout.worker import EndedPrompt, LoopManager, LoopWorker, actor_class

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"

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


def test_a_worker_looks_for_cycles_of_garbage_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    thresholds: list[tuple[int, ...]] = []
    monkeypatch.setattr(AgentLoopWorkerTQ, "__init__", lambda *_: None)
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *given: thresholds.append(given))
    job = load_job(EXAMPLES / "tool-arithmetic-cpu.yaml")

    config = OmegaConf.create({"turnmill": {"job": job.model_dump_json(by_alias=True), "run_dir": str(tmp_path)}})
    LoopWorker.__init__(object.__new__(SlotWorkerWithoutRows), config)

    assert thresholds == [garbage.THRESHOLDS]


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


class Handle:
    """A worker that is started and has nothing to say."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.restored: list[SlotState] = []
        self.generate_sequences = self.set_limit = self.restore = self

    def remote(self, given: TensorDict | list[SlotState] | int) -> None:
        if isinstance(given, TensorDict):
            self.batches.append(list(given["uid"]))
        elif isinstance(given, list):
            assert not self.batches
            self.restored += given


class Queue:
    """A queue with keys and tags only."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, dict[str, Any]]] = {"train": {}}
        self.cleared: list[str] = []

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return self.tags

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        assert partition_id == "train"
        self.cleared += keys

    def send(self, manager: LoopManager, *uids: str, slots: Sequence[int] = (), step: int = 1) -> None:
        """Let a manager send prompts."""
        self.tags["train"] |= {uid: {"is_prompt": True, "status": "running", "global_steps": step} for uid in uids}
        columns = {"uid": np.array(uids, dtype=object), "slot": list(slots) or [0] * len(uids)}
        prompts = tensordict_utils.get_tensordict(columns)
        tensordict_utils.assign_non_tensor_data(prompts, "global_steps", step)
        manager.generate_sequences(prompts)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    monkeypatch.setattr(trajectory_worker, "tq", made)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    monkeypatch.setattr(ray, "get", lambda calls, **_: calls)
    return made


def manager_of(kind: type[LoopManager], run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a manager of one worker, whose replacements are handles, too."""
    monkeypatch.setattr(AgentLoopManagerTQ, "__init__", lambda self, config: setattr(self, "config", config))
    monkeypatch.setattr(kind, "worker_class", TrajectoryWorker, raising=False)
    monkeypatch.setattr(TrajectoryManager, "_new_worker", lambda self, index: Handle())
    example = "babyai-goto-cpu.yaml" if kind is TurnLoopManager else "tool-arithmetic-cpu.yaml"
    job = load_job(EXAMPLES / example).model_dump_json(by_alias=True)
    made: Any = kind(OmegaConf.create({"turnmill": {"job": job, "run_dir": str(run_dir)}}))
    made.agent_loop_workers = [Handle()]
    return made


DEATH = RayActorError(error_msg="it was killed")


@pytest.mark.parametrize("death", [DEATH, OutOfMemoryError("killed to save memory")], ids=["died", "out of memory"])
def test_what_a_dead_worker_is_sent_goes_to_its_replacement(queue, tmp_path, monkeypatch, death):
    def get(_: object) -> None:
        raise death

    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)
    monkeypatch.setattr(manager, "_limits_set", True)
    monkeypatch.setattr(ray, "get", get)
    queue.send(manager, "a")
    monkeypatch.setattr(ray, "get", lambda calls: calls)

    assert manager.replace_worker(0, death).worker.batches == [["a"]]


def test_a_worker_that_has_died_does_not_keep_a_run_that_has_ended_from_closing(queue, tmp_path, monkeypatch):
    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)
    manager.agent_loop_workers = [
        SimpleNamespace(close=SimpleNamespace(remote=lambda call=call: call)) for call in ("dead", "alive", "broken")
    ]
    answered = []

    def get(call: str, *, timeout: float) -> None:
        answered.append(call)
        if call == "dead":
            raise DEATH
        if call == "broken":
            raise RuntimeError("disk")

    monkeypatch.setattr(ray, "get", get)

    with pytest.raises(RuntimeError, match="disk"):
        manager.close()
    assert answered == ["dead", "alive", "broken"]


def test_a_dead_worker_is_replaced_and_the_new_one_plays_what_had_not_ended(queue, tmp_path, monkeypatch):
    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)
    queue.send(manager, "a", "b", "c")
    queue.tags["train"]["a"]["status"] = queue.tags["train"]["b"]["status"] = "finished"
    manager.forget([EndedPrompt("a", 1, validation=False)])
    queue.tags["train"] |= {"b_0_0": {"status": "success"}, "c_0_0": {"status": "success"}}

    replacement = manager.replace_worker(0, DEATH)

    assert replacement.ended == [EndedPrompt("b", 1, validation=False)]
    assert manager.agent_loop_workers == [replacement.worker]
    assert replacement.worker.batches == [["c"]]
    assert queue.cleared == ["c_0_0"]


def test_a_prompt_whose_worker_dies_again_and_again_ends_the_run(queue, tmp_path, monkeypatch):
    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)
    queue.send(manager, "a")

    for _ in range(MAX_TRIES - 1):
        assert manager.replace_worker(0, DEATH).worker.batches == [["a"]]
    with pytest.raises(RunFailedError, match=r"An agent loop worker died: .*it was killed"):
        manager.replace_worker(0, DEATH)

    failure = RunFolder(tmp_path).read_failure()
    assert failure is not None
    assert failure.cause == "agent_loop_died"


def test_workers_that_die_before_they_get_anything_end_the_run(queue, tmp_path, monkeypatch):
    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)

    for _ in range(MAX_TRIES - 1):
        manager.replace_worker(0, DEATH)
    with pytest.raises(RunFailedError, match="An agent loop worker died"):
        manager.replace_worker(0, DEATH)


def test_prompts_that_a_manager_of_the_users_own_has_sent_end_the_run(queue, tmp_path, monkeypatch):
    manager = manager_of(TrajectoryManager, tmp_path, monkeypatch)
    queue.tags["train"]["a"] = {"is_prompt": True, "status": "running", "global_steps": 1}

    with pytest.raises(RunFailedError, match="An agent loop worker died"):
        manager.replace_worker(0, DEATH)


@pytest.mark.parametrize(
    ("accelerator", "options"),
    [("null", {}), ("A100", {"num_cpus": 0, "resources": {"accelerator_type:A100": RESOURCE_SHARE}})],
)
def test_workers_are_on_machines_with_the_accelerator_of_the_training(accelerator, options):
    job = load_job(EXAMPLES / "tool-arithmetic-cpu.yaml", [f"resources.train.accelerator={accelerator}"])

    made = actor_class(TrajectoryWorker, OmegaConf.create({"turnmill": {"job": job.model_dump_json(by_alias=True)}}))

    assert made._default_options == options


def state(slot: int, step: int) -> SlotState:
    """Return the state of a slot after a step of five turns."""
    return SlotState(slot, episode=0, turns_played=5 * step, responses=("go",) * 5 * step)


def end(manager: Any, uid: str, slot: int, step: int) -> None:
    """Let a worker report the end of a slot's turns."""
    manager.forget([EndedSegment(uid, step, False, state(slot, step))])


@pytest.fixture
def slots(queue, tmp_path, monkeypatch) -> Any:
    """A manager of two workers with slots."""
    manager = manager_of(TurnLoopManager, tmp_path, monkeypatch)
    manager.agent_loop_workers = [Handle(), Handle()]
    return manager


def test_every_slot_goes_to_the_worker_that_has_its_environment(queue, slots):
    queue.send(slots, "a", "b", "c", "d", slots=[4, 1, 0, 3])

    assert [worker.batches for worker in slots.agent_loop_workers] == [[["a", "c"]], [["b", "d"]]]


def test_a_new_worker_gets_the_slots_of_the_dead_one_and_then_what_had_not_ended(queue, slots):
    queue.send(slots, "a", "b", "c", slots=[0, 1, 2])
    end(slots, "a", slot=0, step=1)
    end(slots, "b", slot=1, step=1)
    queue.send(slots, "d", "e", slots=[0, 1], step=2)

    queue.tags["train"]["a"]["status"] = queue.tags["train"]["b"]["status"] = "finished"

    worker = slots.replace_worker(0, DEATH).worker

    # Slot 2 has played no turns of a whole step.
    assert worker.restored == [state(0, 1)]
    assert worker.batches == [["c"], ["d"]]


def test_a_slot_whose_state_is_not_known_ends_the_attempt(queue, slots):
    queue.send(slots, "a", "b", slots=[0, 1])
    queue.tags["train"]["a"]["status"] = "finished"

    with pytest.raises(RunFailedError, match="An agent loop worker died"):
        slots.replace_worker(0, DEATH)
    assert slots.replace_worker(1, DEATH).worker.batches == [["b"]]


def test_a_checkpoint_has_the_states_after_its_step_wherever_the_slots_are(slots):
    slots.restore([state(1, 3), state(0, 3)])
    assert slots.snapshot(3) == [state(0, 3), state(1, 3)]

    for slot, step in ((0, 4), (0, 5), (1, 4)):
        end(slots, f"{slot} {step}", slot, step)

    assert slots.snapshot(4) == [state(0, 4), state(1, 4)]
    assert slots.replace_worker(0, DEATH).worker.restored == [state(0, 5)]
    assert slots.snapshot(4) == [state(0, 4), state(1, 4)]


def test_states_are_kept_as_far_as_rollout_may_be_ahead(slots):
    for step in range(1, 9):
        end(slots, str(step), slot=0, step=step)

    assert slots.snapshot(6) == [state(0, 6)]
    assert slots.snapshot(5) == []


def test_a_slot_that_has_not_ended_a_step_is_in_no_checkpoint(slots):
    assert slots.snapshot(0) == []
    assert slots.replace_worker(0, DEATH).worker.restored == []
