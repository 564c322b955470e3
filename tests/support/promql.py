"""The series and labels that a PromQL expression reads, for tests of dashboards and alerts."""

import re
from dataclasses import dataclass, field

import promql_parser as promql

VARIABLE = re.compile(r"\$\{?(\w+)\}?")
DEFAULTS = {"__rate_interval": "1m", "window": "2m", "__range": "5m", "price": "1"}
COUNTER_FUNCTIONS = {"rate", "increase", "irate", "resets"}


@dataclass(slots=True)
class Reads:
    """The series and labels of an expression."""

    selectors: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """Names of series, each with the labels that select it."""

    labels: set[str] = field(default_factory=set)
    """Labels that results are grouped or matched by."""

    counted: set[str] = field(default_factory=set)
    """Series that are read through `rate` or a similar function."""

    quantiles_without_le: int = 0

    @property
    def names(self) -> set[str]:
        """The names of the series."""
        return {name for name, _ in self.selectors}


def variables_in(expression: str) -> set[str]:
    """Return the dashboard variables in an expression."""
    return set(VARIABLE.findall(expression))


def with_values(expression: str, **values: str) -> str:
    """Return the expression with variables replaced by values that select everything, and short durations."""
    known = DEFAULTS | values
    return VARIABLE.sub(lambda found: known.get(found[1], ".*"), expression)


def reads(expression: str) -> Reads:
    """Parse an expression and return what it reads; raises ValueError if it is not PromQL."""
    found = Reads()
    promql.walk(promql.parse(with_values(expression)), lambda node: _collect(node, found))
    return found


def _collect(node: promql.Expr, found: Reads) -> None:
    match node:
        case promql.VectorSelector():
            found.selectors.append((str(node.name), frozenset(m.name for m in node.matchers.matchers)))
        case promql.AggregateExpr() if node.modifier is not None:
            found.labels.update(node.modifier.labels)
        case promql.BinaryExpr() if node.modifier is not None and node.modifier.matching is not None:
            found.labels.update(node.modifier.matching.labels)
        case promql.Call() if node.func.name in COUNTER_FUNCTIONS:
            found.counted.update(str(n) for n in _selectors_below(node))
        case promql.Call() if node.func.name == "histogram_quantile":
            below = Reads()
            promql.walk(node.args[1], lambda inner: _collect(inner, below))
            found.quantiles_without_le += "le" not in below.labels


def _selectors_below(node: promql.Expr) -> list[str]:
    names: list[str] = []

    def take(inner: promql.Expr) -> None:
        if isinstance(inner, promql.VectorSelector):
            names.append(str(inner.name))

    promql.walk(node, take)
    return names
