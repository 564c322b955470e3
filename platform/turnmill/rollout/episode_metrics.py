"""Metrics of one episode, collected while it goes on."""

MAX_TURNS_WITH_METRICS = 8
"""Of later turns no figure of their own is logged."""


class EpisodeMetrics:
    """What is measured of one trajectory while it goes on, by the names of verl-tool's metrics."""

    def __init__(self) -> None:
        self._lists: dict[str, list[float]] = {}
        self._once: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """One value of several, of which the trajectory's figure is the mean."""
        self._lists.setdefault(name, []).append(value)

    def put(self, name: str, value: float) -> None:
        """The figure itself."""
        self._once[name] = value

    def total(self, name: str) -> float:
        """The sum of a figure's values."""
        return sum(self._lists.get(name, ()))

    def count(self, name: str) -> int:
        """How many values a figure has."""
        return len(self._lists.get(name, ()))

    def read(self) -> dict[str, float]:
        """Every figure."""
        return {name: sum(values) / len(values) for name, values in self._lists.items()} | self._once
