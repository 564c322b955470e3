"""The tables of environments and tools in the documentation are complete."""

import re
from pathlib import Path

from turnmill.environments import registry as environments
from turnmill.tools import registry as tools

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> set[str]:
    """Return the first cells of the rows of a page's tables."""
    return set(re.findall(r"^\| `(\w+)`", (DOCS / page).read_text(), re.MULTILINE))


def test_every_environment_is_documented():
    # Other tests may have registered environments of their own.
    ours = [
        name for name in environments.names() if environments.find(name).__module__.startswith("turnmill.environments.")
    ]

    assert len(ours) > 10
    assert [name for name in ours if name not in rows("environments.md")] == []


def test_every_tool_is_documented():
    assert [name for name in tools.BUILT_IN if name not in rows("tools.md")] == []
