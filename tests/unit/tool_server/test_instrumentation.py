from collections.abc import Mapping
from typing import Any

import pytest

from support.tool_server import MemoryStore
from turnmill.core.errors import StoreUnavailableError
from turnmill.observability.tool_metrics import StoreHealth, ToolMetrics
from turnmill.tool_server.instrumentation import InstrumentedStore, refresh_store_health
from turnmill.trajectories.base import CallKey, Change, Claim


class Store:
    """A store that reports its state or raises an error."""

    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self._answer = answer

    async def info(self, *, deadline: float) -> Mapping[str, Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(("answer", "up"), [({"used_memory": 1}, 1.0), (StoreUnavailableError("no answer"), 0.0)])
async def test_a_scrape_reports_whether_the_store_answers(answer: Any, up: float):
    health = StoreHealth()

    await refresh_store_health(Store(answer), health)  # type: ignore[arg-type]

    assert next(iter(health.collect())).samples[0].value == up


async def test_the_bytes_of_states_and_results_are_counted():
    store, metrics = MemoryStore(), ToolMetrics()
    instrumented = InstrumentedStore(store, metrics)
    store.states["t", "count"] = {"number": b"12"}
    key = CallKey("t", "1")

    claim = await instrumented.begin(key, "count", stateful=True, deadline=1.0)
    assert isinstance(claim, Claim)
    await instrumented.commit(claim, b"result", Change(written={"number": b"13", "last": b"1"}), deadline=1.0)
    await instrumented.begin(key, "count", stateful=True, deadline=1.0)

    read, written = (
        metrics.registry.get_sample_value("turnmill_store_bytes_total", {"direction": direction})
        for direction in ("read", "written")
    )
    assert (read, written) == (len(b"12") + len(b"result"), len(b"result") + len(b"131"))
