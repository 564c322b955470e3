import importlib.util
import json
import sys
from pathlib import Path

import pytest

from support import container

RUNNER = Path(__file__).parent / "persistent_worker_runner.py"
SECONDS = 300
ENDED_BY = {"too much memory": "memory", "too many bytes of files": "files", "a deep tree": "files"}

pytestmark = pytest.mark.skipif(
    not container.can_contain(), reason="a throw-away container requires root and the right to create namespaces"
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


def test_the_sandbox_allows_persistent_workers_in_the_container(findings):
    assert findings["clean"]["holds"]


@pytest.mark.parametrize("attack", runner.ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_an_attack_on_a_persistent_worker_affects_neither_the_worker_nor_the_next_task(findings, attack):
    finding = findings[attack]

    assert "\nREACHED" not in finding["output"]
    assert finding["left"] == []
    assert finding["joins"]
    assert finding["after"] == findings["clean"]["text"]
    assert finding["survived"] is finding["answered"]


@pytest.mark.parametrize(("attack", "limit"), ENDED_BY.items())
def test_a_limit_ends_the_task_of_a_persistent_worker(findings, attack, limit):
    assert findings[attack]["limit"] == limit
