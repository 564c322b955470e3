"""What programs import and name, from which benchmarks tell which results are of other code."""

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SANDBOXES = ROOT / "platform" / "turnmill" / "sandboxes"


@pytest.fixture
def closures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import import_closure

    return import_closure


@pytest.mark.parametrize(
    "text",
    [
        "import turnmill.sandboxes.wire",
        "from turnmill.sandboxes import wire",
        "from turnmill.sandboxes.wire import pack",
        "def later():\n    from turnmill.sandboxes.wire import pack",
        "command = ['python', '-m', 'turnmill.sandboxes.wire']",
        "kind = 'turnmill.sandboxes.wire:Report'",
        "command = 'python -m turnmill.sandboxes.wire --help'",
    ],
)
def test_a_module_counts_however_it_is_reached(closures, tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)

    found = closures.closure([program])

    assert {program, SANDBOXES / "__init__.py", SANDBOXES / "wire.py"} <= set(found)
    # What it imports itself.
    assert SANDBOXES / "base.py" in found


@pytest.mark.parametrize(
    "text", ["import json", "x = 'turnmill.nowhere'", "x = 'a sentence on turnmill.'", "x = '...'"]
)
def test_nothing_else_counts(closures, tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)

    outside = {file for file in closures.closure([program]) if file.name != "__init__.py"}

    assert outside == {program}


def test_attacks_depend_on_the_sandbox_and_not_on_the_rest(monkeypatch, closures):
    import nightly_tests

    attacks = nightly_tests.TESTS / "integration" / "sandboxes" / "test_attacks.py"
    found = closures.closure(nightly_tests._programs(attacks))

    assert {SANDBOXES / "fork_server.py", attacks, attacks.parent / "attack_runner.py"} <= set(found)
    assert not any("training" in file.parts or "operator" in file.parts for file in found)


def test_a_file_of_tests_that_lists_no_programs_depends_on_all_code(closures):
    import nightly_tests

    assert nightly_tests._programs(nightly_tests.TESTS / "e2e" / "test_runs.py") is None
