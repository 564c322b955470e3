import importlib.util
import json
import sys
from pathlib import Path

import pytest

from support import container

RUNNER = Path(__file__).parent / "persistent_worker_runner.py"
SECONDS = 300
ENDED_BY = {"much memory": "memory", "much disk": "files", "a deep tree": "files"}

pytestmark = pytest.mark.skipif(
    not container.can_contain(), reason="a throw-away container takes root and namespaces to be had"
)

spec = importlib.util.spec_from_file_location("persistent_worker_runner", RUNNER)
runner = importlib.util.module_from_spec(spec)
sys.modules["persistent_worker_runner"] = runner
spec.loader.exec_module(runner)


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, object]]:
    done = container.run_contained([str(RUNNER)], timeout_seconds=SECONDS)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_the_sandbox_has_persistent_workers_here(findings):
    assert findings["clean"]["holds"]


@pytest.mark.parametrize("attack", runner.ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_an_attack_on_a_persistent_worker_reaches_neither_it_nor_the_next_task(findings, attack):
    finding = findings[attack]

    assert "\nREACHED" not in finding["said"]
    assert finding["left"] == []
    assert finding["joins"]
    assert finding["after"] == findings["clean"]["text"]
    assert finding["survived"] is finding["answered"]


@pytest.mark.parametrize(("attack", "limit"), ENDED_BY.items())
def test_a_limit_ends_a_persistent_worker_with_all_it_started(findings, attack, limit):
    assert findings[attack]["limit"] == limit
