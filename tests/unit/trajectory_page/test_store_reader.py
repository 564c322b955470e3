"""Updates of the page from the store that fail after reading."""

from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.core.errors import StoreUnavailableError
from turnmill.trajectory_page.store_reader import StoreReader


class Index:
    """An index that cannot be written to the first time."""

    def __init__(self) -> None:
        self.shown: list[Any] | None = None
        self.fails = True

    def replace_in_flight(self, shown: list[Any]) -> None:
        """Fail once, then keep the given trajectories."""
        if self.fails:
            self.fails = False
            raise StoreUnavailableError("busy")
        self.shown = shown


def test_trajectories_read_by_a_failed_update_are_shown_by_the_next(monkeypatch):
    reader, index = StoreReader("redis://localhost:1", include_finished=True), Index()

    async def refresh() -> None:
        reader._seen["run", "rollout"] = SimpleNamespace(summary="a rollout", finished=False)

    monkeypatch.setattr(reader, "_refresh", refresh)
    with pytest.raises(StoreUnavailableError):
        reader.update(index)

    assert reader.update(index)
    assert index.shown == ["a rollout"]
    assert not reader.update(index)
