from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from turnmill.core.errors import SettingsError
from turnmill.observability.comparison import LastValidation, compare, comparison_text
from turnmill.observability.proportions import Pairs
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord


def episode(number: int, *, solved: bool, step: int = 20, sample: int = 0, seed: int | None = None) -> TurnRecord:
    """Return an episode of one turn."""
    return TurnRecord(
        episode=f"v{step}-{number}-{sample}",
        environment=number,
        turn=0,
        step=step,
        policy_version=step,
        prompt=f"task {number}",
        response="go",
        action="go",
        reward=1.0 if solved else -0.1,
        done=True,
        stop_reason="completed",
        environment_name="babyai",
        seed=1000 + number if seed is None else seed,
    )


def run(path: Path, episodes: Sequence[TurnRecord]) -> Path:
    """Create a run folder with these validation episodes."""
    folder = RunFolder(path)
    folder.create()
    TrajectoryLog(folder).append(episodes, validation=True)
    for step in sorted({each.step for each in episodes}):
        folder.append_metrics(step, {"validation/success": 0.5})
    return path


def pairs_of(a: Path, b: Path) -> Pairs:
    return compare(LastValidation.read(a), LastValidation.read(b))


def episodes(outcomes: str, step: int = 20) -> list[TurnRecord]:
    """Return an episode for each character; 1 is a solved one."""
    return [episode(number, solved=outcome == "1", step=step) for number, outcome in enumerate(outcomes)]


def test_episodes_with_the_same_seed_and_prompt_are_pairs(tmp_path):
    a, b = run(tmp_path / "a", episodes("1100010")), run(tmp_path / "b", episodes("1011110")[::-1])

    assert pairs_of(a, b) == Pairs(both=2, only_a=1, only_b=3, neither=1)


def test_the_last_validations_are_compared_whatever_their_steps(tmp_path):
    a = run(tmp_path / "a", [*episodes("111", step=0), *episodes("000", step=10)])
    b = run(tmp_path / "b", [*episodes("000", step=0), *episodes("110", step=30)])

    assert (LastValidation.read(a).step, LastValidation.read(b).step) == (10, 30)
    assert pairs_of(a, b) == Pairs(both=0, only_a=0, only_b=2, neither=1)


def test_a_validation_that_is_going_on_is_not_compared(tmp_path):
    a = run(tmp_path / "a", episodes("11", step=10))
    TrajectoryLog(RunFolder(a)).append(episodes("0", step=20), validation=True)

    assert LastValidation.read(a).step == 10


def test_episodes_of_one_run_only_are_in_no_pair(tmp_path):
    a, b = run(tmp_path / "a", episodes("1100")), run(tmp_path / "b", episodes("10"))

    assert pairs_of(a, b).total == 2
    assert "2 (2 of A and 0 of B are in no pair)" in printed(a, b)


def test_failed_episodes_are_in_no_pair(tmp_path):
    failed = replace(episode(1, solved=True), stop_reason="failed", failed_cause="environment")
    a, b = run(tmp_path / "a", [episode(0, solved=True), failed]), run(tmp_path / "b", episodes("11"))

    assert pairs_of(a, b) == Pairs(both=1, only_a=0, only_b=0, neither=0)


def test_an_episode_that_was_repeated_after_a_failure_is_in_a_pair(tmp_path):
    failed = replace(episode(0, solved=False), stop_reason="failed", failed_cause="environment")
    a, b = run(tmp_path / "a", [failed, episode(0, solved=True)]), run(tmp_path / "b", episodes("1"))

    assert pairs_of(a, b) == Pairs(both=1, only_a=0, only_b=0, neither=0)


def test_a_repeated_validation_counts_once(tmp_path):
    a, b = run(tmp_path / "a", [*episodes("00"), *episodes("11")]), run(tmp_path / "b", episodes("00"))

    assert pairs_of(a, b) == Pairs(both=0, only_a=2, only_b=0, neither=0)


def test_each_sample_of_a_task_has_a_pair(tmp_path):
    a = run(tmp_path / "a", [episode(0, solved=sample == 0, sample=sample) for sample in (0, 1, 2)])
    b = run(tmp_path / "b", [episode(0, solved=sample < 2, sample=sample, step=40) for sample in (2, 1, 0)])

    assert pairs_of(a, b) == Pairs(both=1, only_a=0, only_b=1, neither=1)


def test_success_is_a_positive_last_reward_as_in_the_metrics(tmp_path):
    cut = replace(episode(0, solved=True), stop_reason="max_tokens")
    first = replace(episode(1, solved=True), done=False, stop_reason=None)
    last = replace(first, turn=1, reward=-0.1, done=True, stop_reason="max_turns", environment_name="", prompt="")

    found = LastValidation.read(run(tmp_path / "a", [cut, first, last]))

    assert sorted(found.solved.values()) == [(False,), (True,)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"environment_name": "sokoban"}, "A played in babyai, B in sokoban"),
        ({"seed": 7}, "their seeds differ"),
        ({"environment": 7}, "their numbers or first prompts differ"),
        ({"prompt": "another task"}, "their numbers or first prompts differ"),
    ],
)
def test_runs_without_a_common_episode_are_refused_with_the_reason(tmp_path, change, reason):
    a = run(tmp_path / "a", episodes("10"))
    b = run(tmp_path / "b", [replace(each, **change) for each in episodes("10")])

    with pytest.raises(SettingsError, match=reason) as caught:
        pairs_of(a, b)

    assert "the same training.validation.seed" in str(caught.value)


def test_a_run_without_validation_is_refused(tmp_path):
    a = run(tmp_path / "a", [])

    with pytest.raises(SettingsError, match=r"has no validation yet.*training\.validation\.episodes"):
        LastValidation.read(a)


def printed(a: Path, b: Path) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(comparison_text(a, b))
    return "\n".join(" ".join(line.split()) for line in capture.get().splitlines())


def test_the_comparison_shows_counts_difference_interval_and_p_value(tmp_path):
    a, b = run(tmp_path / "a", episodes("1" * 2 + "0" * 19)), run(tmp_path / "b", episodes("10" + "1" * 7 + "0" * 12))

    shown = printed(a, b)

    assert f"B {b}, validation of step 20" in shown
    assert "success of A 9.5% (95 % interval 2.7% to 28.9%)" in shown
    assert "pairs of episodes 21\n" in shown
    assert "solved by A only 1\nsolved by B only 7" in shown
    assert "difference, B - A +28.6 points\n95 % interval +2.6 to +50.7 points" in shown
    assert "McNemar's exact p-value 0.07" in shown
    assert "B seems better, but the exact test does not confirm it" in shown


@pytest.mark.parametrize(
    ("of_a", "of_b", "conclusion"),
    [("1" * 9, "0" * 9, "A is better in these episodes"), ("10", "01", "do not show which run is better")],
)
def test_the_comparison_ends_with_a_conclusion(tmp_path, of_a, of_b, conclusion):
    assert conclusion in printed(run(tmp_path / "a", episodes(of_a)), run(tmp_path / "b", episodes(of_b)))
