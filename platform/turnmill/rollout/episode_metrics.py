"""Metrics of one episode, collected while it is played."""

MAX_TURNS_WITH_METRICS = 8
"""Number of turns that have metrics of their own."""


class EpisodeMetrics:
    """The metrics of one episode in progress, by the names of verl-tool's metrics."""

    def __init__(self) -> None:
        self._lists: dict[str, list[float]] = {}
        self._once: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Add one of several values; the metric is their mean."""
        self._lists.setdefault(name, []).append(value)

    def put(self, name: str, value: float) -> None:
        """Set a metric of one value."""
        self._once[name] = value

    def total(self, name: str) -> float:
        """Return the sum of a metric's values."""
        return sum(self._lists.get(name, ()))

    def count(self, name: str) -> int:
        """Return the number of values of a metric."""
        return len(self._lists.get(name, ()))

    def read(self) -> dict[str, float]:
        """Return every metric."""
        return {name: sum(values) / len(values) for name, values in self._lists.items()} | self._once
