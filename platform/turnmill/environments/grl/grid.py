"""Symbols and action names that GRL's agents on a grid may choose in `envConfig`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnmill.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class GridSymbols:
    """Symbols of a map, and their meanings."""

    symbols: Mapping[str, str]
    """The agent's symbols by the environment's."""

    meanings: Mapping[str, str]
    """Meanings by the agent's symbols."""

    @classmethod
    def of(
        cls, names: Mapping[str, str], *, grid_lookup: Mapping[int, str] | None, grid_vocab: Mapping[str, str] | None
    ) -> "GridSymbols":
        """Combine the environment's symbols with GRL's settings.

        `names` has the environment's symbols and meanings in the order of GRL's numbers. `grid_lookup` maps numbers to
        symbols, `grid_vocab` symbols to meanings; `grid_lookup` takes precedence, and the meanings of its symbols may
        be in any words. Raises SettingsError for unknown numbers and meanings.
        """
        numbered = (grid_lookup or {}).values()
        chosen = {
            meaning: symbol
            for symbol, meaning in (grid_vocab or {}).items()
            if meaning in names.values() or symbol not in numbered
        }
        _refuse_unknown(chosen, names.values(), "grid_vocab")
        by_number = dict(enumerate(names))
        for number, symbol in (grid_lookup or {}).items():
            if number not in by_number:
                raise SettingsError(
                    f"envConfig.grid_lookup: {number} is not the number of a cell. Known: 0 to {len(names) - 1}."
                )
            chosen[names[by_number[number]]] = symbol
        symbols = {own: chosen.get(meaning, own) for own, meaning in names.items()}
        return cls(symbols, {symbols[own]: (grid_vocab or {}).get(symbols[own], name) for own, name in names.items()})

    def translate(self, observation: str) -> str:
        """Return a map in the agent's symbols."""
        return observation.translate({ord(own): symbol for own, symbol in self.symbols.items()})

    def legend(self) -> str:
        """Return all symbols with their meanings."""
        return ", ".join(f"{symbol} {meaning}" for symbol, meaning in self.meanings.items())


class ActionNames:
    """An agent's names and numbers of the actions of its environment."""

    def __init__(self, lookup: Mapping[int, str], actions: Sequence[str]) -> None:
        """Take names by number. Raises SettingsError for a name that is not an action."""
        self.lookup = dict(lookup)
        _refuse_unknown([name.lower() for name in lookup.values()], actions, "action_lookup")

    def match(self, text: str) -> str | None:
        """Return the environment's action for a name in any case, or for a number."""
        names = {name.lower() for name in self.lookup.values()}
        if text.lower() in names:
            return text.lower()
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None
        return self.lookup[number].lower() if number in self.lookup else None

    def listed(self) -> str:
        """Return all names, separated by commas."""
        return ", ".join(self.lookup.values())


def _refuse_unknown(given: Iterable[str], known: Iterable[str], field: str) -> None:
    allowed = list(known)
    if unknown := [name for name in given if name not in allowed]:
        raise SettingsError(f"envConfig.{field}: {unknown[0]!r} is unknown. Known: {', '.join(allowed)}.")
