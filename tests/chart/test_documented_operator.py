import re
from pathlib import Path

from turnmill_operator.metrics import REGISTRY
from turnmill_operator.status import Reason, State

DOCS = Path(__file__).parents[2] / "docs"


def test_every_state_and_reason_is_documented_with_its_remedy():
    words = set(re.findall(r"`(\w+)`", (DOCS / "operator.md").read_text()))

    assert {*State, *Reason} - words == set()


def test_every_metric_of_the_operator_is_documented():
    rows = set(re.findall(r"^\| `(\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in REGISTRY.collect()
        if family.name.startswith("turnmill_")
    }

    assert names - rows == set()
