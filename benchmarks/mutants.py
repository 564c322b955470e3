"""Changes the core in small ways by cosmic-ray, one at a time, and says which changes no test notices.

.venv-mutants/bin/python benchmarks/mutants.py run [--number 60] [--seed 0] [--processes 2] [--survivors] [ROOM...]
.venv-mutants/bin/python benchmarks/mutants.py page

`run` draws mutants of each room at random, applies each to a copy of the repository and runs there the tests that
import the file, those of its own name first, until one fails. It adds a line to `benchmarks/results/mutants.jsonl` for
each. One that was drawn before, and whose file has not changed since, is not tried again. `page` writes
`docs/mutants.md`: for each room the share that tests noticed, when they were first tried and last, and all others with
the reason that `benchmarks/results/survivors.toml` gives.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from select import select
from typing import Any, Self

from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import apply_mutation, mutate_code
from cosmic_ray.plugins import get_operator
from import_closure import closure, imported
from results_file import append_result, present_commit, read_results

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "platform"))
from turnmill.core.code_hash import hash_code  # noqa: E402

PLATFORM = ROOT / "platform" / "turnmill"
PYTHON = ROOT / ".venv" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
REASONS = ROOT / "benchmarks" / "results" / "survivors.toml"
PAGE = ROOT / "docs" / "mutants.md"
ROOMS = ("rollout", "training", "trajectories", "tool_server")
LIMIT_SECONDS = 600.0
"""A mutant whose tests take longer counts as noticed, as with cosmic-ray."""

PYTEST_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly and not gpu and not e2e")
ENOUGH_FILES, MAX_FILES = 5, 8
"""Files of tests for a mutant: with too few that import its file, those follow that import what imports it."""

SKIPPED_OPERATORS = ("BitOr", "ExceptionReplacer", "RemoveDecorator", "NumberReplacer")
"""`|` is mostly part of a type; wrong exceptions and decorators fail at import; most numbers are times and sizes."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    file: str
    """Below `platform/turnmill`."""

    code: str
    """Hash of the file's code before the change."""

    operator: str
    occurrence: int
    line: int
    function: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from others."""
        return self.file, self.code, self.operator, self.occurrence


@dataclass(frozen=True, slots=True)
class Result(Mutant):
    """A mutant, and what the tests said to it."""

    change: str
    """The changed lines, as `diff` shows them."""

    noticed: bool
    seconds: float
    commit: str
    date: str


def main() -> None:
    """Try mutants, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("rooms", nargs="*", default=ROOMS, metavar="ROOM")
    run.add_argument("--number", type=int, default=60, help="mutants of each room")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--processes", type=int, default=2, help="mutants side by side")
    run.add_argument(
        "--survivors", action="store_true", help="try those again that no test noticed, instead of drawing others"
    )
    commands.add_parser("page")
    options = parser.parse_args()
    if options.command == "run":
        for room in options.rooms:
            drawn = survivors(room) if options.survivors else draw(room, options.number, options.seed)
            known = set() if options.survivors else latest().keys()
            try_mutants([mutant for mutant in drawn if mutant.key not in known], options.processes)
    PAGE.write_text(page())


def draw(room: str, number: int, seed: int) -> list[Mutant]:
    """Return so many mutants of a room: one of each place that is drawn, as an operator alone has twelve."""
    places: dict[tuple[str, int, str], list[Mutant]] = {}
    for file in sorted((PLATFORM / room).rglob("*.py")):
        for mutant in mutants_of(file):
            family = mutant.operator.removeprefix("core/").split("_")[0]
            places.setdefault((mutant.file, mutant.line, family), []).append(mutant)
    chance = random.Random(seed)
    drawn = [chance.choice(places[place]) for place in chance.sample(sorted(places), min(number, len(places)))]
    return [mutant for mutant in drawn if is_python(mutant)]


def is_python(mutant: Mutant) -> bool:
    """Return whether a mutant can be imported: the stars of arguments are no operators, for example."""
    before = (PLATFORM / mutant.file).read_text()
    try:
        ast.parse(mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence))
    except SyntaxError:
        return False
    return True


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    code, lines = hash_code([file])[:12], file.read_text().splitlines()
    for item in _all_work_items([file], {}):
        (mutation,) = item.mutations
        # What signatures and decorators say, types and linters notice.
        is_signature = lines[mutation.start_pos[0] - 1].strip().startswith(("def ", "async def ", "*,", "@"))
        if not is_signature and not any(word in mutation.operator_name for word in SKIPPED_OPERATORS):
            yield Mutant(
                file.relative_to(PLATFORM).as_posix(),
                code,
                mutation.operator_name,
                mutation.occurrence,
                mutation.start_pos[0],
                mutation.definition_name or "",
            )


def try_mutants(mutants: Sequence[Mutant], num_processes: int) -> None:
    """Try mutants in parallel, each in a copy of the repository."""
    commit, copies = present_commit(), SimpleQueue[Copy]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        for number in range(num_processes):
            copies.put(stack.enter_context(Copy(folder / str(number))))
        pool = stack.enter_context(ThreadPoolExecutor(num_processes))

        def try_one(mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                return tried(mutant, copy, commit)
            finally:
                copies.put(copy)

        for result in pool.map(try_one, mutants):
            append_result(RESULTS, result)
            verdict = "noticed" if result.noticed else "SURVIVED"
            print(f"{verdict:8} {result.seconds:4.0f} s {result.file}:{result.line} {result.operator}", flush=True)


class Copy:
    """The files that git has, as they are now, and a process that runs tests of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._output = folder.with_suffix(".log")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (source := ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def of(self, file: Path) -> Path:
        """Return the place of a file of the repository."""
        return self.folder / file.relative_to(ROOT)

    def fails(self, tests: Sequence[Path]) -> bool:
        """Return whether one of these files of tests fails, the first of them before all others."""
        # Tests may be written while mutants are tried.
        known = [str(self.of(test)) for test in tests if self.of(test).is_file()]
        # Without a file, pytest would run all tests.
        for files in filter(None, (known[:1], known[1:])):
            self._output.write_text("")
            code = self._exit_code([*PYTEST_OPTIONS, *files])
            # 5: none of the tests was chosen.
            if code not in (0, 5):
                printed = self._output.read_text(errors="replace")
                failures = re.findall(r"^(?:FAILED|ERROR) tests.*", printed, re.MULTILINE)
                print(failures[0] if failures else f"Exit code {code}; None is no answer in time", flush=True)
                return True
        return False

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = f"{self.folder}/platform:{self.folder}/operator"
        command = [str(PYTHON), str(ROOT / "benchmarks" / "forking_pytest.py"), str(self._output)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )

    def _exit_code(self, arguments: Sequence[str]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        if select([self._process.stdout], [], [], LIMIT_SECONDS)[0]:
            return int(self._process.stdout.readline())
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = self._start()
        return None


def survivors(room: str) -> list[Mutant]:
    """Return the mutants of a room that no test noticed, as far as their files are as they were."""
    found = [result for result in latest().values() if result.file.startswith(f"{room}/") and not result.noticed]
    drawable = {
        mutant.key: mutant for file in {PLATFORM / result.file for result in found} for mutant in mutants_of(file)
    }
    return [drawable[result.key] for result in found if result.key in drawable]


def latest() -> dict[Any, Result]:
    """Return the last result of each mutant, by its key."""
    return {result.key: result for result in read_results(RESULTS, Result)}


def tried(mutant: Mutant, copy: Copy, commit: str) -> Result:
    """Apply a mutant in a copy, run its tests there and undo it."""
    file = copy.of(PLATFORM / mutant.file)
    before = file.read_text()
    began = datetime.now(UTC)
    try:
        apply_mutation(file, get_operator(mutant.operator)(), mutant.occurrence)
        after = file.read_text()
        noticed = copy.fails(tests_of(PLATFORM / mutant.file))
    finally:
        file.write_text(before)
    old, new = before.splitlines(), after.splitlines()
    change = "; ".join(f"{a.strip()} -> {b.strip()}" for a, b in zip(old, new, strict=False) if a != b)
    seconds = (datetime.now(UTC) - began).total_seconds()
    return Result(
        **asdict(mutant),
        change=change[:300],
        noticed=noticed,
        seconds=seconds,
        commit=commit,
        date=began.date().isoformat(),
    )


@cache
def tests_of(file: Path) -> tuple[Path, ...]:
    """Return the files of tests that import a file, or a file that does: the closest, first those of similar names."""
    tests = [test for test in sorted((ROOT / "tests").rglob("test_*.py")) if not {"e2e", "gpu"} & set(test.parts)]
    own_words = words(file.relative_to(PLATFORM))
    reached, chosen, closest = {file}, list[Path](), 0
    while len(chosen) < ENOUGH_FILES:
        own = [test for test in tests if test not in chosen and reached & used_by(test)]
        chosen += sorted(own, key=lambda test: (-len(own_words & words(test)), "integration" in test.parts))
        closest = closest or len(chosen)
        further = {each for each in PLATFORM.rglob("*.py") if reached & {*imported(each), *started(each)}} - reached
        if not further:
            break
        reached |= further
    return tuple(chosen[: min(max(ENOUGH_FILES, closest), MAX_FILES)])


def words(file: Path) -> frozenset[str]:
    """Return the words in the path of a file."""
    return frozenset(re.split(r"[/_.]", file.as_posix()))


@cache
def started(file: Path) -> frozenset[Path]:
    """Return the programs beside a file whose names stand in it, such as `with_name("store_supervisor.py")`."""
    texts = {node.value for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Constant)}
    return frozenset(file.parent / text for text in texts if isinstance(text, str) and text.endswith(".py"))


@cache
def used_by(test: Path) -> frozenset[Path]:
    """Return the files that a file of tests imports or names, itself or by what else lies in `tests`."""
    return frozenset(closure([test], lambda each: imported(each) if "tests" in each.parts else ()))


def page() -> str:
    """Return the page of all mutants whose files are as they were."""
    reasons: dict[str, Any] = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
    first = {result.key: result for result in reversed(read_results(RESULTS, Result))}
    there = [r for r in latest().values() if (PLATFORM / r.file).exists()]
    current = [r for r in there if hash_code([PLATFORM / r.file])[:12] == r.code]
    lines = [
        "# Mutants",
        "",
        "Small changes of the code, made by [cosmic-ray](https://cosmic-ray.readthedocs.io/) and drawn at random: of a",
        "comparison, an operator, a constant, a loop. A test should notice each. Those in the closest five to eight",
        "files are tried, without slow and nightly ones. What none of them notices stands below.",
        "",
        "For most mutants that no test noticed at first, a test was written. So the last share holds for these mutants",
        "alone; of others, tests notice about the share at first.",
        "",
        "```",
        "make mutants",
        "```",
        "",
        "| room | mutants | noticed at first | noticed |",
        "| --- | --- | --- | --- |",
    ]
    for room in ROOMS:
        own = [result for result in current if result.file.startswith(f"{room}/")]
        shares = [
            f"{noticed} ({noticed / len(own):.0%})" if own else ""
            for noticed in (sum(first[result.key].noticed for result in own), sum(result.noticed for result in own))
        ]
        lines.append(f"| `{room}` | {len(own)} | {' | '.join(shares)} |")
    lines += ["", "| not noticed | change | why |", "| --- | --- | --- |"]
    for result in sorted((r for r in current if not r.noticed), key=lambda r: (r.file, r.line, r.change)):
        why = reasons.get(result.file, {}).get(result.change, "")
        change = result.change.replace("|", "\\|").replace("`", "'")
        lines.append(f"| `{result.file}`, `{result.function}` | `{change}` | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
