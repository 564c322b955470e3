"""Filters and order of the list of trajectories, as a URL query and as SQL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from turnmill.trajectory_page.index import Index, SqlValue
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
    """Filters, order and page of a list; None filters nothing."""

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
        """True if any filter is set."""
        return bool(self._conditions()[0])

    def with_changes(self, **changes: Any) -> "Filters":
        """Return a copy with changed values."""
        return replace(self, **changes)

    def query(self, **changes: Any) -> str:
        """Return the URL query with its question mark, after changing values; empty if all are defaults."""
        changed = replace(self, **changes)
        values = {field.name: getattr(changed, field.name) for field in fields(self)}
        params = {name: _query_value(value) for name, value in values.items() if value != _DEFAULTS[name]}
        return f"?{urlencode(params)}" if params else ""

    def where(self) -> tuple[str, list[SqlValue]]:
        """Return the WHERE clause and its values."""
        conditions, values = self._conditions()
        return (f"WHERE {' AND '.join(conditions)}" if conditions else "", values)

    def order(self) -> str:
        """Return the ORDER BY clause."""
        down, up = ("ASC", "DESC") if self.backwards else ("DESC", "ASC")
        return "ORDER BY " + SORTS[self.sort].format(d=down, u=up)

    def _conditions(self) -> tuple[list[str], list[SqlValue]]:
        filters: list[tuple[str, SqlValue]] = [
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
        given = [(condition, value) for condition, value in filters if value is not None]
        return [condition for condition, _ in given], [value for _, value in given]


_DEFAULTS = {field.name: field.default for field in fields(Filters)}
_KINDS = {
    field.name: kind for field in fields(Filters) for kind in (bool, int, float) if field.type in (kind, kind | None)
}


def read_filters(query: Mapping[str, str]) -> tuple[Filters, list[str]]:
    """Parse the filters of a URL query. Also return the problems of those that are left out as invalid."""
    values: dict[str, Any] = {}
    problems = []
    for name, text in query.items():
        if name not in _DEFAULTS or not text.strip():
            continue
        try:
            values[name] = _parse(name, text.strip())
        except ValueError as error:
            problems.append(f"{name.replace('_', ' ')}: {text[:40]!r} {error}.")
    return Filters(**values), problems


def _parse(name: str, text: str) -> str | bool | float:
    kind = _KINDS.get(name)
    if kind is bool:
        return text == "1"
    if kind is not None:
        return max(1, _parse_number(text, kind)) if name == "page" else _parse_number(text, kind)
    if name == "sort" and text not in SORTS:
        raise ValueError(f"is not a valid order: it must be one of {', '.join(SORTS)}")
    if name == "outcome" and text not in OUTCOMES:
        raise ValueError(f"is not a valid outcome: it must be one of {', '.join(OUTCOMES)}")
    return text


def _parse_number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        number: float = kind(text)
    except ValueError:
        number = math.nan
    if number != number:
        raise ValueError("is not a whole number" if kind is int else "is not a number")
    # SQLite's integers have 64 bits; nothing lies beyond an infinite bound.
    if not -(2**63) <= number < 2**63:
        raise ValueError("is too large")
    return number


def _query_value(value: object) -> str:
    return "1" if value is True else str(value)


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list."""

    rows: list[Summary]
    total: int
    by_outcome: dict[str, int]
    """Number of trajectories by outcome, on all pages."""

    mean_reward: float | None
    page: int
    pages: int


def fetch_list_page(index: Index, filters: Filters) -> ListPage:
    """Fetch a page of the list; the last page if the requested one lies beyond it."""
    where, values = filters.where()
    found = index.rows(f"SELECT outcome, count(*), sum(reward) FROM episodes {where} GROUP BY outcome", values)
    counts = {outcome: count for outcome, count, _ in found}
    total = sum(counts.values())
    pages = max(1, -(-total // PAGE_SIZE))
    page = min(filters.page, pages)
    limit = f"LIMIT {PAGE_SIZE} OFFSET {(page - 1) * PAGE_SIZE}"
    # Sort narrow rows: first only the ids of all rows, then the full rows of the page.
    of_page = f"SELECT id FROM episodes {where} {filters.order()} {limit}"
    rows = index.summaries(f"WHERE id IN ({of_page}) {filters.order()}", values)
    rewards = sum(reward for _, _, reward in found)
    by_outcome = {outcome: counts[outcome] for outcome in OUTCOMES if outcome in counts}
    return ListPage(rows, total, by_outcome, rewards / total if total else None, page, pages)


def peers(index: Index, summary: Summary, *, limit: int = 200) -> list[Summary]:
    """Return the trajectories of the same task (environment, seed and prompt), by policy version, oldest first."""
    return index.summaries("WHERE task = ? ORDER BY last_version, last_step, id LIMIT ?", (summary.task, limit))
