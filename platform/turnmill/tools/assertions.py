"""Splits assertions of tests, so that the tested program computes values and another process compares them.

A program that evaluates an assertion itself can make it hold: it can end the process with the sign of success, replace
`abs`, or return an object that equals everything. Here it learns the arguments, but not the expected values.
"""

import ast
import builtins
from dataclasses import dataclass

JUDGE_MODULES = (
    "collections", "datetime", "decimal", "fractions", "functools", "itertools", "math", "operator", "re", "statistics",
    "string",
)  # fmt: skip
"""Modules that conditions may use."""

_OF_OBJECTS = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "callable", "type", "id", "vars", "dir"})
_KNOWN = (frozenset(dir(builtins)) | frozenset(JUDGE_MODULES)) - _OF_OBJECTS
_SCOPES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


@dataclass(frozen=True, slots=True)
class SplitAssertion:
    """An assertion in two parts."""

    expressions: tuple[str, ...]
    """Expressions that the program evaluates."""

    condition: str
    """Condition on their values, named `value_0`, `value_1` and so on."""


class _InseparableError(Exception):
    """The assertion can only be evaluated by the program."""


def split_assertion(assertion: str, source: str) -> SplitAssertion | None:
    """Split one `assert` statement; return None if the program must evaluate it.

    That is so for several statements, for program names within comprehensions, and if both sides of a comparison are
    the program's. `source` is the program, whose functions may have the names of built-in ones.
    """
    try:
        (statement,) = ast.parse(assertion.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(statement, ast.Assert):
        return None
    try:
        return _split(statement.test, _KNOWN) or _split(statement.test, _KNOWN - _defined_in(source))
    except (_InseparableError, RecursionError):
        return None


def _split(test: ast.expr, known: frozenset[str]) -> SplitAssertion | None:
    splitter = _Splitter(known)
    condition = splitter.visit(ast.parse(ast.unparse(test), mode="eval").body)
    if not splitter.expressions:
        return None
    return SplitAssertion(tuple(splitter.expressions), ast.unparse(condition))


class _Splitter(ast.NodeTransformer):
    """Replaces the parts that need the program by names of their values."""

    def __init__(self, known: frozenset[str]) -> None:
        self.expressions: list[str] = []
        self._known = known

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace calls, attributes, items and names that begin with a name of the program."""
        if isinstance(node, (*_SCOPES, ast.NamedExpr, ast.Await)):
            if self._needs_program(node):
                raise _InseparableError
            return node
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Name):
            name = _first_name(node)
            if name is not None and name not in self._known:
                return self._value_of(node)
        visited: ast.AST = super().visit(node)
        return visited

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Take a whole side that is compared for equality: without the other side, the program cannot guess it."""
        sides = [node.left, *node.comparators]
        needing = [side for side in sides if self._needs_program(side)]
        if len(needing) == len(sides):
            raise _InseparableError
        if not (len(needing) == 1 and all(isinstance(operator, ast.Eq | ast.Is) for operator in node.ops)):
            return self.generic_visit(node)
        node.left, *node.comparators = [self._value_of(side) if side in needing else side for side in sides]
        return node

    def _value_of(self, node: ast.expr) -> ast.expr:
        self.expressions.append(ast.unparse(node))
        return ast.Name(f"value_{len(self.expressions) - 1}", ast.Load())

    def _needs_program(self, node: ast.AST) -> bool:
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        return any(name.id not in self._known | bound for name in names)


def _first_name(node: ast.expr) -> str | None:
    """Return the name at the beginning of a chain such as `Solution().add(1)[0]`."""
    while True:
        match node:
            case ast.Call(func=before) | ast.Attribute(value=before) | ast.Subscript(value=before):
                node = before
            case ast.Name(id=name):
                return name
            case _:
                return None


def _defined_in(source: str) -> frozenset[str]:
    """Return the names that a program defines, except by imports."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(functions | assigned)
