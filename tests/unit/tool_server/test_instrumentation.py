from collections.abc import Mapping
from typing import Any

import pytest

from turnmill.core.errors import StoreUnavailableError
from turnmill.observability.tool_metrics import StoreHealth
from turnmill.tool_server.instrumentation import refresh_store_health


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
