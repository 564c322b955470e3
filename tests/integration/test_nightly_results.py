"""Nightly tests: what passed on the present code does not run again, and the page shows what ended last."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

TESTS = """\
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 2])
def test_that_passes(number):
    (HERE / f"ran-{number}").touch(exist_ok=False)


@pytest.mark.nightly
def test_that_fails():
    assert (HERE / "mended").exists()


@pytest.mark.nightly
def test_that_is_skipped():
    pytest.skip("no cluster")


def test_of_the_gate():
    assert False
"""

TESTS_OF_A_FIXTURE = """\
import pytest

VARIANTS = ["fast", pytest.param("slow", marks=pytest.mark.nightly)]


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


def test_of_variants(variant):
    assert variant == "slow"


def test_of_the_gate():
    assert False
"""

PROGRAM = """\
import sys
from pathlib import Path

import nightly_tests as nightly

nightly.ROOT, nightly.TESTS = Path(), Path("tests").absolute()
nightly.RESULTS, nightly.PAGE = Path("results.jsonl").absolute(), Path("nightly.md").absolute()
nightly.CODE, nightly.DEPLOYED, nightly.PACKAGES = ("code",), (), "packages.txt"
nightly.present_commit, nightly.NUM_PROCESSES = lambda: "0a1b2c3", 0
nightly.main()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "code" / "module.py").write_text("a = 1\n")
    (tmp_path / "packages.txt").write_text("numpy==2\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: long\n    e2e: needs a cluster\n")
    return tmp_path


def command(tree: Path, name: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(BENCHMARKS), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def results(tree: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tree / "results.jsonl").read_text().splitlines()]


def outcomes(tree: Path) -> set[tuple[str, bool]]:
    return {(result["test"].partition("::")[2], result["passed"]) for result in results(tree)}


def test_what_passed_on_the_present_code_does_not_run_again(tree: Path):
    first = command(tree, "run")
    assert first.returncode == 1, first.stdout + first.stderr
    passed = {("test_that_passes[1]", True), ("test_that_passes[2]", True)}
    assert outcomes(tree) == passed | {("test_that_fails", False)}

    (tree / "tests" / "mended").touch()
    second = command(tree, "run")
    assert second.returncode == 0, second.stdout + second.stderr
    assert outcomes(tree) == passed | {("test_that_fails", False), ("test_that_fails", True)}
    assert len(results(tree)) == 4


def test_all_run_again_after_a_change_of_the_code(tree: Path):
    command(tree, "run")
    before = {result["code"] for result in results(tree)}

    (tree / "code" / "module.py").write_text("a = 2\n")
    for file in (tree / "tests").glob("ran-*"):
        file.unlink()
    command(tree, "page")
    assert "have not passed on this code: 3" in command(tree, "check").stdout
    command(tree, "run")
    assert len(results(tree)) == 6
    assert len({result["code"] for result in results(tree)} - before) == 1


def test_the_page_shows_the_last_result_of_each_test_and_what_has_none(tree: Path):
    command(tree, "run")
    (tree / "nightly.md").write_text("# Nightly tests\n")
    refused = command(tree, "check")
    assert refused.returncode == 1
    assert "Write it anew" in refused.stderr

    command(tree, "page")
    page = (tree / "nightly.md").read_text()
    assert "| `test_some.py::test_that_passes[1]` | passed |" in page
    assert "| `test_some.py::test_that_fails` | **failed** |" in page
    assert "Without a result:\n\n- `test_some.py::test_that_is_skipped`\n" in page
    assert "test_of_the_gate" not in page
    assert command(tree, "check").returncode == 0


def test_tests_are_found_by_the_parameters_of_their_fixture(tree: Path):
    (tree / "tests" / "test_some.py").write_text(TESTS_OF_A_FIXTURE)
    assert command(tree, "run").returncode == 0
    assert outcomes(tree) == {("test_of_variants[slow]", True)}
    command(tree, "page")
    page = (tree / "nightly.md").read_text()
    assert "| `test_some.py::test_of_variants[slow]` | passed |" in page
    assert "test_of_the_gate" not in page


def test_a_test_whose_name_begins_that_of_another_does_not_hide_it(tree: Path):
    one = "@pytest.mark.nightly\ndef test_one():\n    pass\n\n\n"
    other = one.replace("test_one", "test_one_more").replace("pass", "assert (HERE / 'mended').exists()")
    (tree / "tests" / "test_some.py").write_text(TESTS.partition("@pytest")[0] + one + other)
    assert command(tree, "run").returncode == 1
    (tree / "tests" / "mended").touch()
    assert command(tree, "run").returncode == 0
    assert ("test_one_more", True) in outcomes(tree)
