"""The page of what examples learn: a result of other code is marked as stale, and the page cannot fall behind."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turnmill.core.code_hash import hash_code

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "learning.py"


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, with results and a page of its own."""
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("learning", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "learning", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "learning.jsonl")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PAGE", tmp_path / "learning.md")
    monkeypatch.setattr(module, "QUOTING", (tmp_path / "README.md",))
    (tmp_path / "README.md").write_text("Success <!-- learned: babyai-goto-cpu -->\nis great<!-- end -->.\n")
    monkeypatch.setattr(module, "PICTURES", tmp_path / "images")
    return module


def add(learning: ModuleType, seed: int, **changes: Any) -> None:
    values: dict[str, Any] = {
        "example": "babyai-goto-cpu", "seed": seed, "code": learning.hash_of("babyai-goto-cpu"), "commit": "0a1b2c3",
        "date": "2026-01-02", "exit_code": 0, "before": 0.25, "after": 0.5, "episodes": 128, "seconds": 100.0,
        "warm_start_seconds": 30.0, "cpu_minutes": 4.0, "curve": [[0, 0.25], [20, 0.5]], "rewards": [[1, 0.2]],
    }  # fmt: skip
    learning.append(learning.Result(**(values | changes)))


def test_results_of_the_present_code_are_shown_with_intervals_and_their_median(learning):
    for seed, after in enumerate([0.5, 0.75, 0.625]):
        add(learning, seed, after=after)

    page = learning.page()

    assert "| 0 | 0.250 (0.18–0.33) | 0.500 (0.41–0.59) | 100 | 30 | 4.0 | 0a1b2c3 | 2026-01-02 |" in page
    assert "| median | 0.250 | 0.625 |" in page
    assert "stale" not in page.split("## babyai-goto-cpu")[1].lower()


@pytest.mark.parametrize(
    ("target", "before", "after", "reached"),
    [
        ((0.45, 0.85), [0.3, 0.4, 0.5], [0.8, 0.9, 0.85], True),
        ((0.45, 0.85), [0.3, 0.5, 0.5], [0.8, 0.9, 0.85], False),
        ((0.45, 0.85), [0.3, 0.4, 0.5], [0.8, 0.9, 0.84], False),
        ((0.45, 0.85, 0.7), [0.3, 0.4, 0.5], [0.6, 0.9, 0.9], False),
        ((0.45, None), [0.1, 0.2, 0.3], [0.3, 0.4, 0.5], True),
        ((0.45, None), [0.1, 0.2, 0.3], [0.3, 0.39, 0.5], False),
        ((None, None), [0.5, 0.5, 0.5], [0.8, 0.8, 0.8], True),
    ],
)
def test_a_target_is_of_medians_and_of_the_worst_seed(learning, target, before, after, reached):
    assert learning.Target(*target).is_reached(before, after) == reached


def test_the_page_tells_whether_a_target_is_reached(learning):
    add(learning, 0, after=0.90)
    assert "from at most 0.45 to at least 0.85: it does (one seed)." in learning.page()

    add(learning, 1, after=0.75)
    assert "to at least 0.85: it does not (median of 2 seeds)." in learning.page()


def test_a_result_of_other_code_is_marked_as_stale(learning):
    add(learning, 0, code="another hash")

    section = learning.page().split("## babyai-goto-cpu")[1]

    assert "**Stale:**" in section
    assert "2026-01-02, stale" in section


def test_a_result_of_the_present_code_replaces_a_stale_one_whatever_their_order(learning):
    add(learning, 0, after=0.875)
    add(learning, 0, after=0.125, code="another hash")

    page = learning.page()

    assert "0.875" in page
    assert "0.125" not in page


def test_a_page_that_does_not_say_what_is_stale_fails_the_check(learning, monkeypatch):
    add(learning, 0)
    learning.write_page()
    learning.check_page()
    assert (learning.PICTURES / "babyai-goto-cpu.svg").read_text().startswith("<?xml")

    monkeypatch.setattr(learning, "hash_of", lambda example: "changed")

    with pytest.raises(SystemExit, match=r"learning\.md, README\.md .*learning\.py page"):
        learning.check_page()


def test_other_pages_say_what_was_measured_and_on_which_code(learning, monkeypatch):
    readme = learning.QUOTING[0]
    learning.write_page()
    assert "has not been measured<!-- end -->." in readme.read_text()

    add(learning, 0, after=0.5)
    learning.write_page()
    assert "-->rises from 25 % to 50 % (one seed)<!--" in readme.read_text()

    for seed, after in enumerate([0.75, 0.625], start=1):
        add(learning, seed, after=after)
    learning.write_page()
    assert "-->rises from 25 % to 62 % (median of 3 seeds)<!--" in readme.read_text()

    monkeypatch.setattr(learning, "hash_of", lambda example: "changed")
    learning.write_page()
    assert "(median of 3 seeds, measured before the last change of the code)<!--" in readme.read_text()


def test_only_what_has_no_result_of_the_present_code_is_trained(learning, monkeypatch):
    add(learning, 0)
    add(learning, 1, code="another hash")
    add(learning, 2, exit_code=1)
    trained: list[int] = []

    def train_one(example: str, seed: int) -> Any:
        trained.append(seed)
        return learning.results()[0]

    monkeypatch.setattr(learning, "train_one", train_one)
    learning.train(["babyai-goto-cpu"], [0, 1, 2])

    assert trained == [1, 2]


def test_the_hash_of_an_example_changes_with_its_settings_and_not_with_its_comments(learning, monkeypatch, tmp_path):
    file = tmp_path / "example-cpu.yaml"
    monkeypatch.setattr(learning, "EXAMPLES", tmp_path)
    hashes = []
    for text in ("# One.\nsteps: 1\n", "# Two.\nsteps: 1\n", "steps: 2\n"):
        file.write_text(f"{text}spec: {{agent: {{type: verlog}}}}\n")
        learning.hash_of.cache_clear()
        hashes.append(learning.hash_of("example-cpu"))

    assert hashes[0] == hashes[1] != hashes[2]


def test_a_variant_has_a_hash_of_its_own_and_says_on_the_page_what_it_sets(learning, monkeypatch):
    rloo = learning.Variant("babyai-goto-cpu", ("algorithm.type=rloo",))
    monkeypatch.setattr(learning, "VARIANTS", {"babyai-goto-rloo-cpu": rloo})
    add(learning, 0, example="babyai-goto-rloo-cpu", code=learning.hash_of("babyai-goto-rloo-cpu"))

    section = learning.page().split("## babyai-goto-rloo-cpu")[1]

    assert learning.hash_of("babyai-goto-rloo-cpu") != learning.hash_of("babyai-goto-cpu")
    assert "The example `babyai-goto-cpu` with `algorithm.type=rloo`." in section
    assert "stale" not in section.split("##")[0]


def test_a_variant_is_trained_with_its_settings(learning, monkeypatch):
    rloo = learning.Variant("babyai-goto-cpu", ("algorithm.type=rloo", "training.steps=2"))
    monkeypatch.setattr(learning, "VARIANTS", {"babyai-goto-rloo-cpu": rloo})
    started: list[tuple[str, Any]] = []

    def one(job: Path, run_dir: Path, seed: int, *arguments: str) -> Any:
        started.append((job.name, arguments))
        measured = SimpleNamespace(summary={}, exit_code=0, cpu_seconds=1.0)
        return SimpleNamespace(seconds=1.0, cpu_seconds=1.0), measured

    monkeypatch.setitem(sys.modules, "main_job", SimpleNamespace(one=one))
    monkeypatch.setattr(learning, "present_commit", lambda: "0a1b2c3")
    (learning.ROOT / "runs" / "nightly").mkdir(parents=True)
    learning.train_one("babyai-goto-rloo-cpu", 0)

    assert started == [("babyai-goto-cpu.yaml", ("--set", "algorithm.type=rloo", "--set", "training.steps=2"))]


def test_algorithms_are_compared_over_the_seeds_once_two_of_them_have_results(learning):
    def add_variant(example: str, seed: int, after: float) -> None:
        rewards = [[1, 0.1], [2, after]]
        add(learning, seed, example=example, code=learning.hash_of(example), after=after, rewards=rewards)

    for seed, after in enumerate([0.8, 0.9, 1.0]):
        add_variant("tool-arithmetic-grpo-cpu", seed, after)
    assert "Algorithms compared" not in learning.page()

    add_variant("tool-arithmetic-rloo-cpu", 0, 0.75)
    section = learning.page().split("## Algorithms compared")[1]
    learning.write_page()

    # The standard deviation of 0.1 over the root of 3, times Student's t of 4.303.
    assert "| `grpo` | 3 | 0.250 | 0.900 | 0.65–1.00 |" in section
    assert "| `rloo` | 1 | 0.250 | 0.750 | – |" in section
    assert (learning.PICTURES / "algorithms-compared.svg").read_text().startswith("<?xml")


def forget_hashes(learning: ModuleType) -> None:
    for cached in (learning.hash_of, learning._hash_of_file, learning._removed, learning._earlier):
        cached.cache_clear()


def test_a_result_of_code_with_the_same_steps_is_not_stale(learning, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "SAME_STEPS", tmp_path / "same_steps.jsonl")
    forget_hashes(learning)
    add(learning, 0)
    file = learning.files_of(learning.job_of("babyai-goto-cpu"))[0]
    was, name = learning.hash_code([file]), str(file.relative_to(PROGRAM.parents[1]))
    changed = {file: "b" * 64}
    monkeypatch.setattr(learning, "hash_code", lambda files: changed.get(files[0]) or hash_code(files))
    same = {"file": name, "commit": "0a1b2c3", "examples": ["babyai-goto-cpu"], "date": "2026-01-02"}

    def is_current() -> bool:
        forget_hashes(learning)
        return bool(learning.results()[0].is_current)

    assert not is_current()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(**same, was="a" * 64, now="b" * 64))
    assert not is_current()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(**same, was=was, now="a" * 64))
    assert is_current()
    changed[file] = "c" * 64
    assert not is_current()


def test_a_file_that_was_removed_without_changing_any_step_leaves_results_valid(learning, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "SAME_STEPS", tmp_path / "same_steps.jsonl")
    files = learning.files_of(learning.job_of("babyai-goto-cpu"))
    removed = files[1].with_name("removed.py")
    monkeypatch.setattr(learning, "files_of", lambda job: [*files, removed])
    monkeypatch.setattr(learning, "hash_code", lambda paths: "a" * 64 if paths == [removed] else hash_code(paths))
    forget_hashes(learning)
    add(learning, 0)
    monkeypatch.setattr(learning, "files_of", lambda job: files)
    name = str(removed.relative_to(PROGRAM.parents[1]))
    same = {"file": name, "commit": "0a1b2c3", "examples": ["babyai-goto-cpu"], "date": "2026-01-02", "now": ""}

    def is_current() -> bool:
        forget_hashes(learning)
        return bool(learning.results()[0].is_current)

    assert not is_current()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(**same, was="b" * 64))
    assert not is_current()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(**same, was="a" * 64))
    assert not is_current()
    (tmp_path / "same_steps.jsonl").unlink()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(**same, was="a" * 64))
    assert is_current()


def test_a_file_that_was_added_without_changing_any_step_leaves_results_valid(learning, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "SAME_STEPS", tmp_path / "same_steps.jsonl")
    forget_hashes(learning)
    add(learning, 0)
    added = PROGRAM.parents[1] / "platform" / "turnmill" / "tasks" / "added.py"
    files = learning.files_of(learning.job_of("babyai-goto-cpu"))
    monkeypatch.setattr(learning, "files_of", lambda job: [*files, added])
    monkeypatch.setattr(learning, "hash_code", lambda paths: "a" * 64 if paths == [added] else hash_code(paths))
    same = {"commit": "0a1b2c3", "examples": ["babyai-goto-cpu"], "date": "2026-01-02", "was": "", "now": "a" * 64}

    def is_current() -> bool:
        forget_hashes(learning)
        return bool(learning.results()[0].is_current)

    assert not is_current()
    learning.append_result(learning.SAME_STEPS, learning.SameSteps(file="platform/turnmill/tasks/added.py", **same))
    assert is_current()
