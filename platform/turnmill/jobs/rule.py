"""Rules across fields, each in Python and, for the API server, in CEL."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from turnmill.jobs.problems import MISSING, Problem
from turnmill.jobs.settings import PLUGIN, kind_of
from turnmill.jobs.values import BrokenValueError, Values

_PLACEHOLDER = re.compile(r"\{([A-Za-z.]+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on several fields; `{path}` in the sentence is replaced by a value, and paths begin below `spec`."""

    path: str
    holds: Callable[[Values], bool]
    cel: str
    sentence: str
    way_out: Callable[[Values], str]
    only: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    """Fields and their values for which the rule applies."""

    def check(self, values: Values) -> Problem | None:
        """Return the problem if the rule is broken; None if it holds or a value that it needs is invalid itself."""
        try:
            if not self._is_judged(values) or self.holds(values):
                return None
            sentence = _PLACEHOLDER.sub(lambda match: str(values[f"spec.{match[1]}"]), self.sentence)
            value = values[f"spec.{self.path}"]
            shown = MISSING if value is None or isinstance(value, dict) else value
            return Problem(f"spec.{self.path}", shown, sentence, self.way_out(values))
        except BrokenValueError:
            return None

    def _is_judged(self, values: Values) -> bool:
        return all(kind_of(values[f"spec.{path}"]) in _words(wanted) for path, wanted in self.only)

    @property
    def validation(self) -> str:
        """The rule in CEL, with the conditions under which it applies."""
        conditions = [_is_other(path, _words(wanted)) for path, wanted in self.only]
        return " || ".join([*conditions, f"({self.cel})" if conditions else self.cel])

    @property
    def message(self) -> str:
        """The sentence, without values."""
        return re.sub(r" ?\(?\{[A-Za-z.]+\}\)?", "", self.sentence)


def _words(wanted: str | tuple[str, ...]) -> tuple[str, ...]:
    return (wanted,) if isinstance(wanted, str) else wanted


def _is_other(path: str, words: tuple[str, ...]) -> str:
    """Return the condition, in CEL, that a field has none of the values."""
    named = [word for word in words if word != PLUGIN]
    if len(words) == 1 and named:
        return f"self.{path} != '{named[0]}'"
    plugin = f" || self.{path}.contains(':')" if PLUGIN in words else ""
    return f"!(self.{path} in {named}{plugin})"
