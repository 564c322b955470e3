import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from turnmill.sandboxes import admission
from turnmill.sandboxes.admission import Admission, available_bytes


class Tasks:
    """Tasks that run until they are told to end."""

    def __init__(self, **limits: int) -> None:
        self.waiting = 0
        self.admission = Admission(**limits, on_waiting=lambda number: setattr(self, "waiting", number))
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._all: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, memory_bytes: int) -> None:
        self._ends[name] = asyncio.Event()
        self._all[name] = asyncio.create_task(self._run(name, memory_bytes))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._all[name]
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._all[name].cancel()
        await asyncio.gather(self._all[name], return_exceptions=True)
        await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._all.values():
            task.cancel()
        await asyncio.gather(*self._all.values(), return_exceptions=True)

    async def _run(self, name: str, memory_bytes: int) -> None:
        async with self.admission.admitted(memory_bytes):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    async with AsyncExitStack() as stack:
        tasks = Tasks(max_running=3, memory_bytes=100)
        stack.push_async_callback(tasks.close)
        yield tasks


async def test_limits_of_running_tasks_add_up_to_at_most_the_budget(tasks: Tasks):
    for name in "abc":
        await tasks.start(name, 40)

    assert tasks.running == ["a", "b"]
    assert tasks.waiting == 1
    await tasks.end("a")
    assert tasks.running == ["b", "c"]
    assert tasks.waiting == 0


async def test_at_most_a_number_of_tasks_run(tasks: Tasks):
    for name in "abcd":
        await tasks.start(name, 1)

    assert tasks.running == ["a", "b", "c"]
    await tasks.end("b")
    assert tasks.running == ["a", "c", "d"]


async def test_a_large_task_is_not_overtaken_by_small_ones(tasks: Tasks):
    await tasks.start("a", 40)
    await tasks.start("large", 90)
    await tasks.start("small", 10)

    assert tasks.running == ["a"]
    await tasks.end("a")
    assert tasks.running == ["large", "small"]


async def test_a_task_that_may_use_more_than_the_budget_runs_alone(tasks: Tasks):
    await tasks.start("a", 1)
    await tasks.start("huge", 10**9)
    await tasks.start("b", 1)

    await tasks.end("a")
    assert tasks.running == ["huge"]
    await tasks.end("huge")
    assert tasks.running == ["b"]


@pytest.mark.parametrize("cancelled", ["waits", "runs"])
async def test_a_cancelled_task_gives_back_its_place_and_memory(tasks: Tasks, cancelled: str):
    await tasks.start("runs", 60)
    await tasks.start("waits", 60)
    await tasks.start("last", 40)

    await tasks.cancel(cancelled)

    assert tasks.running == (["runs", "last"] if cancelled == "waits" else ["waits", "last"])
    assert tasks.waiting == 0


async def test_a_task_that_is_cancelled_in_the_moment_of_its_admission_gives_back_its_place(tasks: Tasks):
    await tasks.start("first", 100)
    await tasks.start("second", 100)
    await tasks.start("third", 100)

    tasks._ends["first"].set()
    await tasks._all["first"]
    # `second` was admitted, but has not run since.
    await tasks.cancel("second")

    assert tasks.running == ["third"]


def test_the_limit_of_a_container_counts_if_it_is_less_than_the_memory(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(admission, "_CGROUP_LIMITS", (tmp_path / "missing", limit))

    limit.write_text("max\n")
    whole = available_bytes()
    limit.write_text("1048576\n")

    assert available_bytes() == 1048576 < whole
