"""The page of faults names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_on_the_page_of_faults_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/reliability.md").read_text()))
    paths = [ROOT / (name if name.startswith("tests/") else f"tests/integration/{name}") for name in named]

    assert len(paths) > 20
    assert [path for path in paths if not path.exists()] == []
