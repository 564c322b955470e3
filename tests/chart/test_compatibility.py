"""Every feature of the five systems has a test, and every test that is named exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
ROWS = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def names_of_tests(path: Path) -> set[str]:
    """The names of a file's tests."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


def test_no_feature_is_left_out():
    numbers = [int(number) for row in ROWS for number in row[1].split(",")]

    assert numbers == sorted(set(numbers))
    assert set(range(79, 149)) <= set(numbers)


def test_every_feature_names_a_test_that_exists():
    named = {row[1].strip(): re.findall(r"`(\S+\.py)::(\w+)`", row[3]) for row in ROWS}
    known = {file: names_of_tests(ROOT / "tests" / file) for found in named.values() for file, _ in found}

    assert [number for number, found in named.items() if not found] == []
    assert [test for found in named.values() for test in found if test[1] not in known[test[0]]] == []
