"""verl's loop and turnmill's as a run has them, for `rollout_cost.py`: FOLDER SYSTEM SIZE, see the harness.

A worker of agent loops is an actor of Ray, gets all prompts in one batch, and puts its rows into verl's queue, which
is asked once a second whether they are all there. Counted is the processor time of Ray's processes: of the worker, the
queue, and Ray's own. Engine and tool are in the worker.
"""

import asyncio
import json
import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rollout_cost_harness import Apart, Engine, Played, main, name_of
from rollout_cost_verl import PLAYERS as IN_PROCESS
from rollout_cost_verl import Client, chat_job, config_of, constant_tool, tool_job

POLL_SECONDS = 1.0
PARTITION = "train"
COLUMNS = ("prompts", "responses", "response_mask", "rollout_log_probs")

# ---- the workers ----


def verl_worker(folder: Path) -> type:
    from turnmill.rollout.verl_classes import AgentLoopWorkerTQ

    return AgentLoopWorkerTQ


def multi_turn_worker(folder: Path) -> type:
    from turnmill.rollout.multi_turn.worker import MultiTurnWorker

    return MultiTurnWorker


def tool_worker(folder: Path) -> type:
    from turnmill.rollout.tool_agent.worker import ToolLoopWorker

    class Worker(ToolLoopWorker):
        """One whose tool answers in the same process."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.tool_loop.tools = constant_tool(folder)  # type: ignore[assignment]

    return Worker


def with_queue(worker_of: Callable[[Path], type], job_of: Callable[..., Any]) -> Callable[[Engine, Path, Path], Apart]:
    """Return what prepares a worker by its class and its job."""

    def prepare(engine: Engine, folder: Path, run_dir: Path) -> Apart:
        import ray
        import transfer_queue as tq

        os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")
        config = config_of(job_of(folder, engine.turns), folder, run_dir)
        config.transfer_queue.enable = True
        config.turnmill.tool_server_url = "http://127.0.0.1:1"  # not asked
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=500 << 20)
        tq.init(config.transfer_queue)

        class Worker(worker_of(folder)):  # type: ignore[misc]
            """A worker whose engine says what it has emitted."""

            async def take_emitted(self) -> dict[str, bytearray]:
                emitted = dict(self.llm_client.engine.emitted)
                self.llm_client.engine.emitted.clear()
                return emitted

        worker = ray.remote(num_cpus=0)(Worker).remote(config, Client(engine), None, None)
        return Batches(worker, json.loads((folder / "tasks.jsonl").read_text())["prompt"], engine).apart()

    return prepare


PARTS = {"verl": (verl_worker, chat_job), "multi_turn": (multi_turn_worker, chat_job), "tool": (tool_worker, tool_job)}
PLAYERS = {f"{name}_queue": IN_PROCESS[name]._replace(prepare=with_queue(*parts)) for name, parts in PARTS.items()}
"""What is measured, by name."""

# ---- batches ----


class Batches:
    """Sends what is to be played at the same time as one batch."""

    def __init__(self, worker: Any, prompt: Sequence[Any], engine: Engine) -> None:
        self._worker = worker
        self._prompt = prompt
        self._engine = engine
        self._next: list[int] = []
        self._played: dict[int, Played] = {}
        self._batch: asyncio.Task[None] | None = None

    def apart(self) -> Apart:
        """Return how it is measured."""
        return Apart(self.play, cpu_seconds, self.collect)

    async def play(self, number: int) -> Played:
        """Play it with all others of the same moment; `collect` reads its rows."""
        self._next.append(number)
        if self._batch is None or self._batch.done():
            self._batch = asyncio.create_task(self._play_next())
        await self._batch
        played = self._played[number] = Played()
        return played

    async def _play_next(self) -> None:
        numbers, self._next = self._next, []
        await asyncio.to_thread(self._play_batch, numbers)

    def _play_batch(self, numbers: Sequence[int]) -> None:
        import ray
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        fixed = {"global_steps": 1, "raw_prompt": self._prompt, "extra_info": {}, "tools_kwargs": {}}
        fixed |= {"agent_name": "tool_agent", "__rollout_n__": 1}
        rows = [{"uid": name_of(number), "index": number, **fixed} for number in numbers]
        ray.get(self._worker.generate_sequences.remote(list_of_dict_to_tensordict(rows)))
        waiting = {name_of(number) for number in numbers}
        while waiting:
            time.sleep(POLL_SECONDS)
            tags = tq.kv_list(PARTITION).get(PARTITION, {})
            statuses = {name: tags.get(name, {}).get("status") for name in waiting}
            assert "failure" not in statuses.values(), statuses
            waiting = {name for name, status in statuses.items() if status != "finished"}

    def collect(self) -> None:
        """Read what the engine has emitted, and the rows."""
        import ray
        import transfer_queue as tq

        self._engine.emitted.update(ray.get(self._worker.take_emitted.remote()))
        keys = [f"{name_of(number)}_0_0" for number in self._played]
        rows = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=list(COLUMNS))
        for played, *columns in zip(self._played.values(), *(rows[name] for name in COLUMNS), strict=True):
            played.add(*(array("d" if each.is_floating_point() else "i", each.tolist()) for each in columns))
        self._played = {}


def cpu_seconds() -> float:
    """Return the processor time of Ray's processes so far."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    main(PLAYERS)
