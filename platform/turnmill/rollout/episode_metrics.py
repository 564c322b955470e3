"""Metrics of one episode, collected while it is played."""

MAX_TURNS_WITH_METRICS = 8
"""Number of turns that have metrics of their own."""


class EpisodeMetrics:
    """The metrics of one episode in progress, by the names of verl-tool's metrics."""

    def __init__(self) -> None:
        self._lists: dict[str, list[float]] = {}
        self._sums: dict[str, float] = {}
        self._once: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Add one of several values; the metric is their mean."""
        self._lists.setdefault(name, []).append(value)

    def sum(self, name: str, value: float) -> None:
        """Add one of several values; the metric is their sum."""
        self._sums[name] = self._sums.get(name, 0.0) + value

    def put(self, name: str, value: float) -> None:
        """Set a metric of one value."""
        self._once[name] = value

    def total(self, name: str) -> float:
        """Return the sum of a metric's values so far, for metrics that are sums."""
        return self._sums.get(name, 0.0)

    def count(self, name: str) -> int:
        """Return the number of values of a metric."""
        return len(self._lists.get(name, ()))

    def read(self) -> dict[str, float]:
        """Return every metric."""
        means = {name: sum(values) / len(values) for name, values in self._lists.items()}
        return means | self._sums | self._once
