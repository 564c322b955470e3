import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support import container

HERE = Path(__file__).parent
NIGHTLY_PROGRAMS = ("attack_programs.py", "attack_runner.py", "kernel_attacks.py", "limit_attacks.py")
"""What runs in the container: of the project, only what these import."""
SECONDS = 590

pytestmark = [
    pytest.mark.skipif(
        not container.can_contain(), reason="a throw-away container requires root and the right to create namespaces"
    ),
    # Attacks of two processes would share what the kernel allows one user, such as pages of pipes.
    pytest.mark.xdist_group("attacks"),
]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


programs = load("attack_programs")
ATTACKS = [
    *programs.ATTACKS,
    *load("limit_attacks").LIMIT_ATTACKS,
    *load("kernel_attacks").KERNEL_ATTACKS,
]


VARIANTS = [
    # The gate tries the variant of pods, nightly tests the others.
    pytest.param(variant, marks=[pytest.mark.nightly] if variant != programs.POD else [])
    for variant in programs.EVERYWHERE
]


@pytest.fixture(scope="module", params=VARIANTS)
def findings(request) -> dict[str, dict[str, object]]:
    """The findings on all attacks, in one container per variant."""
    done = container.run_contained([str(HERE / "attack_runner.py"), request.param], timeout_seconds=SECONDS)
    assert done.stdout, done.stderr
    return {"variant": request.param, **json.loads(done.stdout)}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_an_attack_works_bare_and_fails_in_the_sandbox(findings, attack):
    finding = findings[attack.name]

    assert finding["control"] is (True if findings["variant"] in attack.variants else None)
    assert finding["succeeded"] is False, finding["report"]


def test_after_all_attacks_the_sandbox_works_and_leaves_no_folders(findings):
    assert findings["afterwards"]["works"]
    assert findings["afterwards"]["left"] == []


def test_the_variants_differ_in_their_barriers(findings):
    barriers = findings["afterwards"]["barriers"]

    assert f"own_user={findings['variant'] == programs.ROOT}" in barriers
    assert f"pid_namespace={findings['variant'] != programs.POD}" in barriers
