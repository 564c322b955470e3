"""Limits on the size of files and on untyped code, in what is installed."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("platform", "operator") for path in (ROOT / folder).rglob("*.py"))
MAX_LINES = 300
MAX_ANY = 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_long_file_states_why_it_is_one_file(path: Path):
    text = path.read_text()
    reason = "one file" in " ".join((ast.get_docstring(ast.parse(text)) or "").lower().split())

    assert reason or text.count("\n") <= MAX_LINES, (
        f"{text.count(chr(10))} lines: split it by concern, or say in the module's docstring why it is one file."
    )


def test_the_use_of_any_stays_within_its_budget():
    count = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in FILES)

    assert count <= MAX_ANY, f"Any is written {count} times: at most {MAX_ANY} in platform/ and operator/."
