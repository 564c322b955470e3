"""What a PromQL expression reads, for tests of boards and alerts."""

import re
from dataclasses import dataclass, field

import promql_parser as promql

VARIABLE = re.compile(r"\$\{?(\w+)\}?")
DURATIONS = {"__rate_interval": "1m", "window": "2m", "__range": "5m"}
COUNTER_FUNCTIONS = {"rate", "increase", "irate", "resets"}


@dataclass(slots=True)
class Reads:
    """What an expression asks for."""

    selectors: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """Names of series, each with the labels that it is chosen by."""

    labels: set[str] = field(default_factory=set)
    """Labels that results are grouped or matched by."""

    counted: set[str] = field(default_factory=set)
    """Series that are read through `rate` or its like."""

    quantiles_without_le: int = 0

    @property
    def names(self) -> set[str]:
        """The series."""
        return {name for name, _ in self.selectors}


def variables_in(expression: str) -> set[str]:
    """The variables of a board that an expression refers to."""
    return set(VARIABLE.findall(expression))


def with_values(expression: str, **values: str) -> str:
    """The expression with its variables replaced: everything chosen, short durations."""
    known = DURATIONS | values
    return VARIABLE.sub(lambda found: known.get(found[1], ".*"), expression)


def reads(expression: str) -> Reads:
    """What a parsed expression asks for; raises ValueError for one that is not PromQL."""
    found = Reads()
    promql.walk(promql.parse(with_values(expression)), lambda node: _take(node, found))
    return found


def _take(node: promql.Expr, found: Reads) -> None:
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
            promql.walk(node.args[1], lambda inner: _take(inner, below))
            found.quantiles_without_le += "le" not in below.labels


def _selectors_below(node: promql.Expr) -> list[str]:
    names: list[str] = []

    def take(inner: promql.Expr) -> None:
        if isinstance(inner, promql.VectorSelector):
            names.append(str(inner.name))

    promql.walk(node, take)
    return names
