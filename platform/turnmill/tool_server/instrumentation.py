"""Metrics of the sandbox and of the trajectory store."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from turnmill.core.errors import StoreError
from turnmill.observability.tool_metrics import StoreHealth, ToolMetrics
from turnmill.sandboxes.base import Sandbox, SandboxResult, SandboxTask
from turnmill.tool_server.calls import CallStore
from turnmill.tool_server.waiting import add_waiting
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.store import TrajectoryStore

STORE_INFO_SECONDS = 1.0
"""Deadline of the store's INFO at each scrape, which Prometheus by default ends after ten seconds."""


class InstrumentedSandbox:
    """A sandbox that counts runs and exceeded limits."""

    def __init__(self, sandbox: Sandbox, metrics: ToolMetrics) -> None:
        self._sandbox = sandbox
        self._metrics = metrics

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Run a task and count it."""
        with self._metrics.sandbox_in_flight.track_inprogress():
            result = await self._sandbox.run(task)
        add_waiting(result.waiting_seconds)
        self._metrics.sandbox_runs.inc()
        self._metrics.sandbox_seconds.observe(result.seconds)
        if result.limit is not None:
            self._metrics.sandbox_kills.labels(result.limit).inc()
        return result

    async def close(self) -> None:
        """Close the sandbox."""
        await self._sandbox.close()


async def refresh_store_health(store: TrajectoryStore, health: StoreHealth) -> None:
    """Read the store's INFO into the metrics; a store that does not answer in time counts as down."""
    try:
        health.show(await store.info(deadline=deadline_in(STORE_INFO_SECONDS)))
    except StoreError:
        health.show(())


class InstrumentedStore:
    """A store that measures operations: number, seconds and bytes."""

    def __init__(self, store: CallStore, metrics: ToolMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim | Recorded:
        """Claim a call, or return the result that it already has."""
        with self._count_operation("begin"):
            begun = await self._store.begin(key, tool, stateful=stateful, deadline=deadline)
        read = len(begun.result) if isinstance(begun, Recorded) else sum(map(len, begun.state.values()))
        self._metrics.store_bytes.labels("read").inc(read)
        return begun

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        """Record a result and a change."""
        with self._count_operation("commit"):
            await self._store.commit(claim, result, change, finishes=finishes, deadline=deadline)
        written = sum(map(len, change.written.values())) if change else 0
        self._metrics.store_bytes.labels("written").inc(len(result) + written)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Release a claim."""
        with self._count_operation("release"):
            await self._store.release(claim, deadline=deadline)

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Delete the state of a trajectory."""
        with self._count_operation("finish"):
            await self._store.finish(trajectory_id, deadline=deadline)

    @contextmanager
    def _count_operation(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._metrics.store_operations.labels(operation, outcome).inc()
            self._metrics.store_seconds.labels(operation).observe(time.perf_counter() - started)
