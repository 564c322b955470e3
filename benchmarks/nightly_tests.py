"""Runs the tests that are too long for the gate, and reports when each of them last passed.

.venv/bin/python benchmarks/nightly_tests.py run [FILE...]
.venv/bin/python benchmarks/nightly_tests.py page
.venv/bin/python benchmarks/nightly_tests.py check

`run` runs the tests marked `nightly` that have not passed on the present code, in pairs, those of a cluster last, and
adds a line to `benchmarks/results/nightly.jsonl` after each; tests that are skipped leave none. `page` writes
`docs/nightly.md`. `check` fails if the page is not what `page` writes, and says how many have to run again.
"""

import argparse
import ast
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from import_closure import closure
from results_file import append_result, present_commit, read_results

from turnmill.core.code_hash import hash_code

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RESULTS = ROOT / "benchmarks" / "results" / "nightly.jsonl"
PAGE = ROOT / "docs" / "nightly.md"
CODE = ("platform/turnmill", "operator", "tests/support")
DEPLOYED = ("charts", "images", "manifests")
PACKAGES = "requirements/cpu.txt"
NUM_PROCESSES = 2

INTRODUCTION = """\
# Nightly tests

Tests that are too long for the gate, with the run in which each ended last. Some need a cluster with the images, and
are skipped without it; `TURNMILL_CLUSTER` names the script that starts one:

```
.ci/cluster
eval "$("$TURNMILL_CLUSTER" env)"
make nightly
```

`code` is the hash of what a test depends on: the code of platform, operator and tests, the packages and, for tests on
a cluster, charts, images and manifests. A file of tests that lists its programs (`NIGHTLY_PROGRAMS`) depends on what
it and they import. `make check` says for how many it is another one by now; `make nightly` runs only these.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One test that ended."""

    test: str
    """Its file below `tests/`, its name and parameters, as pytest has them."""

    code: str
    """Hash of what it depends on; see `hash_of`."""

    commit: str
    date: str
    passed: bool
    seconds: float

    @property
    def function(self) -> str:
        """The test without its parameters."""
        return self.test.partition("[")[0]

    @property
    def is_current(self) -> bool:
        """Return whether it passed on the present code."""
        return self.passed and self.code == hash_of(self.test)


class Recorder:
    """A plugin of pytest that adds a line for every test that ends."""

    def __init__(self) -> None:
        self._commit = present_commit()
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed:
            self._failed.add(name)
        if report.skipped:
            self._skipped.add(name)
        if report.when == "teardown" and name not in self._skipped:
            test = name.removeprefix("tests/")
            today = time.strftime("%Y-%m-%d", time.gmtime())
            append(Result(test, hash_of(test), self._commit, today, name not in self._failed, self._seconds[name]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("files", type=Path, nargs="*", default=sorted({TESTS / file_of(test) for test in functions()}))
    commands.add_parser("page")
    commands.add_parser("check")
    options = parser.parse_args()
    if options.command == "run":
        sys.exit(run_tests(options.files))
    elif options.command == "page":
        PAGE.write_text(page())
    else:
        check_page()


def file_of(test: str) -> str:
    """Return the file of a test, below `tests/`."""
    return test.partition("::")[0]


@cache
def functions() -> list[str]:
    """Return all tests marked `nightly`, without parameters."""
    return sorted(
        f"{file.relative_to(TESTS)}::{name}"
        for file in TESTS.rglob("test_*.py")
        if "mark.nightly" in (text := file.read_text())
        for name in _marked(ast.parse(text))
    )


def _marked(tree: ast.Module) -> Iterator[str]:
    """Yield the tests that are marked: all of them, by a decorator, or by a parameter of theirs or of their fixture."""
    words = ["mark.nightly"]
    for node in tree.body:
        if isinstance(node, ast.Assign) and _mentions(node.value, words):
            words.append(ast.unparse(node.targets[0]))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    marked = [node for node in functions if any(_mentions(decorator, words) for decorator in node.decorator_list)]
    fixtures = {node.name for node in marked if not node.name.startswith("test_")}
    for node in functions:
        arguments = {argument.arg for argument in node.args.args}
        if node.name.startswith("test_") and ("pytestmark" in words or node in marked or arguments & fixtures):
            yield node.name


def _mentions(expression: ast.expr, words: Sequence[str]) -> bool:
    text = ast.unparse(expression)
    return any(word in text for word in words)


@cache
def hash_of(test: str) -> str:
    """Return the hash of all that a test depends on; 12 digits."""
    file = TESTS / file_of(test)
    programs = _programs(file)
    total = hashlib.sha256((_packages() + (_code() if programs is None else _hash_of_all(programs))).encode())
    total.update(hash_code([file]).encode())
    if file.is_relative_to(TESTS / "e2e"):
        total.update(_deployed().encode())
    return total.hexdigest()[:12]


@cache
def _code() -> str:
    return hash_code(ROOT / folder for folder in CODE)


@cache
def _packages() -> str:
    return hashlib.sha256((ROOT / PACKAGES).read_bytes()).hexdigest()


@cache
def _programs(file: Path) -> tuple[Path, ...] | None:
    """Return a file of tests and the programs that it lists in `NIGHTLY_PROGRAMS`; None if it lists none."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NIGHTLY_PROGRAMS":
            return (file, *(file.parent / name for name in ast.literal_eval(node.value)))
    return None


@cache
def _hash_of_all(programs: Sequence[Path]) -> str:
    return hash_code(closure(programs))


@cache
def _deployed() -> str:
    listed = subprocess.run(
        ["git", "ls-files", "--", *DEPLOYED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return hashlib.sha256(b"".join(f"{name}\n".encode() + (ROOT / name).read_bytes() for name in listed)).hexdigest()


# ---- running ----


def run_tests(files: Sequence[Path]) -> int:
    """Run the tests of these files that have not passed on the present code; return 1 if one failed."""
    os.chdir(ROOT)
    # pytest deselects all that begins with a name: a test whose name begins that of another runs again.
    passed = [
        f"--deselect=tests/{result.test}"
        for result in latest_results()
        if result.is_current and not any(name.startswith(result.test) for name in functions() if name != result.test)
    ]
    failed = False
    # Tests on a cluster share an operator or a release within their file.
    for marks, distribution in (("not e2e", ("loadgroup",)), ("e2e", ("loadfile",))):
        options = (f"-n{NUM_PROCESSES}", "--dist", *distribution, "-m", f"nightly and {marks}", "-rP", *passed)
        status = pytest.main([*options, *map(str, files)], plugins=[Recorder()])
        failed |= status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return int(failed)


def append(result: Result) -> None:
    """Add a result to the file."""
    append_result(RESULTS, result)


def results() -> list[Result]:
    """Return all results, oldest first."""
    return read_results(RESULTS, Result)


def latest_results() -> list[Result]:
    """Return the newest result of every test that is still marked."""
    newest = {result.test: result for result in results() if result.function in functions()}
    return [newest[test] for test in sorted(newest)]


# ---- the page ----


def page() -> str:
    """Return the page of the results."""
    return "\n".join(_page_lines()) + "\n"


def _page_lines() -> Iterator[str]:
    latest = latest_results()
    yield INTRODUCTION
    if latest:
        yield "| test | result | s | code | commit | date |"
        yield "| --- | --- | --- | --- | --- | --- |"
    for result in latest:
        outcome = "passed" if result.passed else "**failed**"
        cells = (f"`{result.test}`", outcome, f"{result.seconds:.0f}", f"`{result.code}`", result.commit, result.date)
        yield f"| {' | '.join(cells)} |"
    if missing := sorted(set(functions()) - {result.function for result in latest}):
        yield from (*([""] if latest else []), "Without a result:", "", *(f"- `{test}`" for test in missing))


def check_page() -> None:
    """Fail if the page is not what `page` returns; say how many tests have to run again."""
    if PAGE.read_text() != page():
        sys.exit(
            f"{PAGE.relative_to(ROOT)} does not show the last results. Write it anew with: "
            ".venv/bin/python benchmarks/nightly_tests.py page"
        )
    num_old = sum(not result.is_current for result in latest_results())
    if num_old:
        print(f"Nightly tests that have not passed on this code: {num_old}; `make nightly` runs them.")


if __name__ == "__main__":
    main()
