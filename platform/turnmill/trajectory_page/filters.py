"""Which trajectories a list shows, and in what order: as its address says it, and as SQL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from turnmill.trajectory_page.index import Index
from turnmill.trajectory_page.summary import OUTCOMES, Summary

PAGE_SIZE = 50
SORTS = {
    "newest": "last_step {d}, id {d}",
    "name": "name {u}, id {u}",
    "reward": "reward {d}, id {d}",
    "turns": "turns {d}, id {d}",
    "tokens": "tokens {d}, id {d}",
    "seconds": "seconds {d}, id {d}",
    "policy": "last_version {d}, id {d}",
    "outcome": "outcome {u}, id {d}",
}


@dataclass(frozen=True, slots=True)
class Filters:
    """What the address of a list says; what is None does not matter."""

    outcome: str | None = None
    kind: str | None = None
    environment: str | None = None
    run: str | None = None
    name: str | None = None
    step_from: int | None = None
    step_to: int | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    turns_from: int | None = None
    turns_to: int | None = None
    sort: str = "newest"
    backwards: bool = False
    page: int = 1

    @property
    def any(self) -> bool:
        """Whether something is filtered out."""
        return bool(self._conditions()[0])

    def with_(self, **changes: Any) -> "Filters":
        """The same with other values."""
        return replace(self, **changes)

    def query(self, **changes: Any) -> str:
        """As the address of a list says it, with other values; with its question mark, or empty."""
        changed = replace(self, **changes)
        values = {field.name: getattr(changed, field.name) for field in fields(self)}
        said = {name: _said(value) for name, value in values.items() if value != _DEFAULTS[name]}
        return f"?{urlencode(said)}" if said else ""

    def where(self) -> tuple[str, list[Any]]:
        """What stands after FROM."""
        conditions, values = self._conditions()
        return (f"WHERE {' AND '.join(conditions)}" if conditions else "", values)

    def order(self) -> str:
        """What stands after WHERE."""
        down, up = ("ASC", "DESC") if self.backwards else ("DESC", "ASC")
        return "ORDER BY " + SORTS[self.sort].format(d=down, u=up)

    def _conditions(self) -> tuple[list[str], list[Any]]:
        asked: list[tuple[str, Any]] = [
            ("outcome = ?", self.outcome),
            ("kind = ?", self.kind),
            ("environment = ?", self.environment),
            ("run = ?", self.run),
            ("instr(name, ?) > 0", self.name),
            ("last_step >= ?", self.step_from),
            ("first_step <= ?", self.step_to),
            ("reward >= ?", self.reward_from),
            ("reward <= ?", self.reward_to),
            ("turns >= ?", self.turns_from),
            ("turns <= ?", self.turns_to),
        ]
        given = [(condition, value) for condition, value in asked if value is not None]
        return [condition for condition, _ in given], [value for _, value in given]


_DEFAULTS = {field.name: field.default for field in fields(Filters)}
_KINDS = {
    field.name: kind for field in fields(Filters) for kind in (bool, int, float) if field.type in (kind, kind | None)
}


def read_filters(query: Mapping[str, str]) -> tuple[Filters, list[str]]:
    """The filters of an address, and what is wrong with those that are left out for it."""
    values: dict[str, Any] = {}
    problems = []
    for name, text in query.items():
        if name not in _DEFAULTS or not text.strip():
            continue
        try:
            values[name] = _read(name, text.strip())
        except ValueError as error:
            problems.append(f"{name.replace('_', ' ')}: {text[:40]!r} {error}.")
    return Filters(**values), problems


def _read(name: str, text: str) -> Any:
    kind = _KINDS.get(name)
    if kind is bool:
        return text == "1"
    if kind is not None:
        return max(1, _number(text, kind)) if name == "page" else _number(text, kind)
    if name == "sort" and text not in SORTS:
        raise ValueError(f"is no order: it must be one of {', '.join(SORTS)}")
    if name == "outcome" and text not in OUTCOMES:
        raise ValueError(f"is no outcome: it must be one of {', '.join(OUTCOMES)}")
    return text


def _number(text: str, kind: type) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if number != number:
        raise ValueError("is no whole number" if kind is int else "is no number")
    # SQLite's integers have 64 bits; nothing lies beyond an infinite bound.
    if not -(2**63) <= number < 2**63:
        raise ValueError("is too large")
    return number


def _said(value: Any) -> str:
    return "1" if value is True else str(value)


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list."""

    rows: list[Summary]
    total: int
    by_outcome: dict[str, int]
    """How many of all pages ended how."""

    mean_reward: float | None
    page: int
    pages: int


def listed(index: Index, filters: Filters) -> Listed:
    """The trajectories that a list shows; the last page where the one asked for lies beyond it."""
    where, values = filters.where()
    found = index.rows(f"SELECT outcome, count(*), sum(reward) FROM episodes {where} GROUP BY outcome", values)
    counts = {outcome: count for outcome, count, _ in found}
    total = sum(counts.values())
    pages = max(1, -(-total // PAGE_SIZE))
    page = min(filters.page, pages)
    limit = f"LIMIT {PAGE_SIZE} OFFSET {(page - 1) * PAGE_SIZE}"
    # What is sorted is narrow: the numbers of all rows, and then the few rows of the page.
    of_page = f"SELECT id FROM episodes {where} {filters.order()} {limit}"
    rows = index.summaries(f"WHERE id IN ({of_page}) {filters.order()}", values)
    rewards = sum(reward for _, _, reward in found)
    by_outcome = {outcome: counts[outcome] for outcome in OUTCOMES if outcome in counts}
    return Listed(rows, total, by_outcome, rewards / total if total else None, page, pages)


def peers(index: Index, summary: Summary, *, limit: int = 200) -> list[Summary]:
    """Trajectories that began alike: the same environment, seed and prompt; by policy, the oldest first."""
    return index.summaries("WHERE task = ? ORDER BY last_version, last_step, id LIMIT ?", (summary.task, limit))
