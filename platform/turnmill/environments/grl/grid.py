"""What GRL's agents on a grid of symbols have in common: their own symbols and their own words for actions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnmill.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Grid:
    """How a map is drawn, and what its symbols mean."""

    symbols: Mapping[str, str]
    """The environment's symbols, each with the agent's."""

    meanings: Mapping[str, str]
    """The agent's symbols, each with its meaning."""

    @classmethod
    def of(
        cls, names: Mapping[str, str], *, grid_lookup: Mapping[int, str] | None, grid_vocab: Mapping[str, str] | None
    ) -> "Grid":
        """`names`: the environment's symbols and meanings in the order of GRL's numbers.

        `grid_lookup` gives a number its symbol, `grid_vocab` a symbol its meaning; where both speak, `grid_lookup` goes
        first.
        """
        chosen = {meaning: symbol for symbol, meaning in (grid_vocab or {}).items()}
        _refuse(chosen, names.values(), "grid_vocab")
        by_number = dict(enumerate(names))
        for number, symbol in (grid_lookup or {}).items():
            if number not in by_number:
                raise SettingsError(
                    f"envConfig.grid_lookup: {number} is no number of a cell. Known: 0 to {len(names) - 1}."
                )
            chosen[names[by_number[number]]] = symbol
        symbols = {own: chosen.get(meaning, own) for own, meaning in names.items()}
        return cls(symbols, {symbols[own]: (grid_vocab or {}).get(symbols[own], name) for own, name in names.items()})

    def draw(self, told: str) -> str:
        """The map in the agent's symbols."""
        return told.translate({ord(own): symbol for own, symbol in self.symbols.items()})

    def legend(self) -> str:
        """What every symbol means."""
        return ", ".join(f"{symbol} {meaning}" for symbol, meaning in self.meanings.items())


class ActionWords:
    """An agent's words for the actions of an environment."""

    def __init__(self, lookup: Mapping[int, str], actions: Sequence[str]) -> None:
        self.lookup = dict(lookup)
        _refuse([word.lower() for word in lookup.values()], actions, "action_lookup")

    def match(self, text: str) -> str | None:
        """The environment's action: of a word, in whatever case, or of its number."""
        words = {word.lower() for word in self.lookup.values()}
        if text.lower() in words:
            return text.lower()
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None
        return self.lookup[number].lower() if number in self.lookup else None

    def named(self) -> str:
        """Every action, as it is written."""
        return ", ".join(self.lookup.values())


def _refuse(given: Iterable[str], known: Iterable[str], field: str) -> None:
    allowed = list(known)
    if unknown := [name for name in given if name not in allowed]:
        raise SettingsError(f"envConfig.{field}: {unknown[0]!r} means nothing here. Known: {', '.join(allowed)}.")
