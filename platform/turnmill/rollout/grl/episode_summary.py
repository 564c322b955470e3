"""What the agent loop tells the trainer of an episode, beside its rows."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

KEY = "grl"


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode by its turns."""

    group: int
    """Which group it belongs to; all of a group begin in the same state."""

    tag: str
    """What its kind of agent is called."""

    rewards: tuple[float, ...]
    """Of every turn."""

    penalties: tuple[float, ...]
    """Of every turn; 0 where there was no mistake."""

    places: tuple[tuple[int, int], ...]
    """Row and response token with which each turn ends."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """The agent's figures, by its tag."""

    lengths: tuple[int, ...] = ()
    """Tokens of each turn's response."""

    @property
    def responses(self) -> Iterator[tuple[int, int, int, int]]:
        """Every turn's number, the row of its response, its last token there, and how many tokens it has."""
        for turn, ((row, end), length) in enumerate(zip(self.places, self.lengths, strict=True)):
            yield turn, row, end, length

    def as_field(self) -> dict[str, Any]:
        """The entry that travels with the rows."""
        return {KEY: asdict(self)}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "EpisodeSummary":
        """The episode in what travelled with a row."""
        found = dict(told[KEY])
        places = tuple((int(row), int(token)) for row, token in found.pop("places"))
        return cls(places=places, **{name: _frozen(value) for name, value in found.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
