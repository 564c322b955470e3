"""Counts what goes to the sandbox and to the trajectory store."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from turnmill.core.errors import StoreError
from turnmill.observability.tool_metrics import StoreHealth, ToolMetrics
from turnmill.sandboxes.base import Sandbox, SandboxResult, SandboxTask
from turnmill.tool_server.calls import CallStore
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.store import TrajectoryStore

STORE_ANSWER_SECONDS = 1.0
"""Of a scrape, which Prometheus gives up after ten by default."""


class MeasuredSandbox:
    """A sandbox whose runs and kills are counted."""

    def __init__(self, sandbox: Sandbox, metrics: ToolMetrics) -> None:
        self._sandbox = sandbox
        self._metrics = metrics

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Run a task and count it."""
        with self._metrics.sandbox_in_flight.track_inprogress():
            outcome = await self._sandbox.run(task)
        self._metrics.sandbox_runs.inc()
        self._metrics.sandbox_seconds.observe(outcome.seconds)
        if outcome.limit is not None:
            self._metrics.sandbox_kills.labels(outcome.limit).inc()
        return outcome

    async def close(self) -> None:
        """Close the sandbox."""
        await self._sandbox.close()


async def look_at_store(store: TrajectoryStore, health: StoreHealth) -> None:
    """Ask the store how it fares; one that does not answer in time is down."""
    try:
        health.show(await store.info(deadline=deadline_in(STORE_ANSWER_SECONDS)))
    except StoreError:
        health.show(None)


class MeasuredStore:
    """A store whose operations and bytes are counted."""

    def __init__(self, store: CallStore, metrics: ToolMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim | Recorded:
        """Claim a call, or get what it answered before."""
        with self._counted("begin"):
            begun = await self._store.begin(key, tool, stateful=stateful, deadline=deadline)
        read = len(begun.result) if isinstance(begun, Recorded) else sum(map(len, begun.state.values()))
        self._metrics.store_bytes.labels("read").inc(read)
        return begun

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        """Record a result and a change."""
        with self._counted("commit"):
            await self._store.commit(claim, result, change, finishes=finishes, deadline=deadline)
        written = sum(map(len, change.written.values())) if change else 0
        self._metrics.store_bytes.labels("written").inc(len(result) + written)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Give a claim back."""
        with self._counted("release"):
            await self._store.release(claim, deadline=deadline)

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Drop the state of a trajectory."""
        with self._counted("finish"):
            await self._store.finish(trajectory_id, deadline=deadline)

    @contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        begun = time.perf_counter()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._metrics.store_operations.labels(operation, outcome).inc()
            self._metrics.store_seconds.labels(operation).observe(time.perf_counter() - begun)
