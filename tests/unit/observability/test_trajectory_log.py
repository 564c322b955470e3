import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import EpisodeFilter, TrajectoryLog, TurnRecord

TURN = TurnRecord(
    episode="e0-0",
    environment=0,
    turn=0,
    step=1,
    policy_version=0,
    prompt="You see a red ball.",
    response='go forward"\n',
    action="go forward",
    reward=0.0,
    prompt_ids=(1, 2, 3),
    response_ids=(4, 5),
    log_probs=(-0.5, -0.25),
    observation="You see a wall.",
)


@pytest.fixture
def log(tmp_path: Path) -> TrajectoryLog:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return TrajectoryLog(folder)


def episode(name: str, *, step: int = 1, turns: int = 1, **last: object) -> list[TurnRecord]:
    """Return the turns of one episode; `last` are the changed fields of its last turn."""
    records = [replace(TURN, episode=name, step=step, turn=number) for number in range(turns)]
    records[-1] = replace(records[-1], **last)  # type: ignore[arg-type]
    return records


def episode_names(log: TrajectoryLog, episode_filter: EpisodeFilter) -> list[str]:
    return [found.name for found in log.read_episodes(episode_filter)]


def test_a_turn_is_read_as_it_was_written(log: TrajectoryLog):
    log.append([TURN])

    assert list(log.read_turns()) == [TURN]


def test_default_values_are_not_written(log: TrajectoryLog):
    log.append([TURN])

    (line,) = (log.path / "step-000001.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {
        "episode", "environment", "turn", "step", "policy_version", "prompt", "response", "action", "reward",
        "prompt_ids", "response_ids", "log_probs", "observation",
    }  # fmt: skip


def test_timing_seed_mask_and_pictures_are_read_as_they_were_written(log: TrajectoryLog):
    turn = replace(
        TURN,
        environment_name="babyai GoToObj",
        seed=7,
        asked_at=1.5e9,
        seconds={"generation": 0.25, "tools": 0.5},
        mask=(2, 1, 4),
        images=("t0-0.png",),
    )

    log.append([turn])

    assert list(log.read_turns()) == [turn]


def test_steps_and_validations_have_files_of_their_own(log: TrajectoryLog):
    log.append([TURN, replace(TURN, step=12)])
    log.append([replace(TURN, step=0)], validation=True)

    files = sorted(file.name for file in log.path.iterdir())
    assert files == ["step-000001.jsonl", "step-000012.jsonl", "validation-000000.jsonl"]


def test_an_episode_that_spans_steps_is_read_as_one(log: TrajectoryLog):
    log.append([replace(TURN, turn=0, step=1), replace(TURN, episode="e1-0", environment=1)])
    log.append([replace(TURN, turn=1, step=2, reward=1.0, done=True, stop_reason="completed")])

    finished, unfinished = log.read_episodes()

    assert [(turn.step, turn.turn) for turn in finished.turns] == [(1, 0), (2, 1)]
    assert (finished.name, finished.outcome, finished.reward) == ("e0-0", "solved", 1.0)
    assert (unfinished.name, unfinished.outcome) == ("e1-0", "unfinished")


def test_two_validations_can_use_the_same_episode_names(log: TrajectoryLog):
    log.append(episode("e0-0", step=0, turns=2), validation=True)
    log.append(episode("e0-0", step=5, turns=3, done=True), validation=True)

    found = log.read_episodes(EpisodeFilter(validation=True))

    assert sorted(len(one.turns) for one in found) == [2, 3]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ({"done": True, "stop_reason": "completed", "reward": 0.9}, "solved"),
        ({"done": True, "stop_reason": "completed", "reward": 0.0}, "unsolved"),
        ({"stop_reason": "max_turns", "reward": 0.5}, "unsolved"),
        ({"stop_reason": "timeout"}, "unsolved"),
        ({"stop_reason": "failed", "failed_cause": "EnvironmentError", "reward": 1.0}, "failed"),
        ({}, "unfinished"),
    ],
)
def test_the_last_turn_decides_the_outcome(log: TrajectoryLog, last: dict[str, object], outcome: str):
    log.append(episode("e0-0", turns=2, **last))

    (found,) = log.read_episodes()

    assert found.outcome == outcome


def test_filters_select_by_outcome_step_reward_kind_and_name(log: TrajectoryLog):
    log.append(episode("good", step=1, done=True, reward=1.0))
    log.append(episode("poor", step=2, done=True, reward=-0.2))
    log.append(episode("broken", step=2, failed_cause="TimeoutError"))
    log.append(episode("checked", step=2, done=True, reward=1.0), validation=True)

    assert episode_names(log, EpisodeFilter(outcome="solved")) == ["good", "checked"]
    assert episode_names(log, EpisodeFilter(outcome="failed")) == ["broken"]
    assert episode_names(log, EpisodeFilter(step=2, validation=False)) == ["poor", "broken"]
    assert episode_names(log, EpisodeFilter(max_reward=-0.1)) == ["poor"]
    assert episode_names(log, EpisodeFilter(min_reward=0.5, validation=True)) == ["checked"]
    assert episode_names(log, EpisodeFilter(name="good")) == ["good"]


def test_a_resumed_run_drops_turns_after_its_checkpoint(log: TrajectoryLog):
    log.append([replace(TURN, step=step) for step in (9, 10, 11)])
    log.append([replace(TURN, step=0), replace(TURN, step=11)], validation=True)

    log.rewind(10)

    files = sorted(file.name for file in log.path.iterdir())
    assert files == ["step-000009.jsonl", "step-000010.jsonl", "validation-000000.jsonl"]


def test_an_incomplete_line_is_skipped(log: TrajectoryLog):
    log.append([TURN])
    atomic_files.append(log.path / "step-000001.jsonl", b'{"episode":"e1-0","prompt":"{\\"episode\\":')
    log.append([replace(TURN, turn=1)])

    assert [(turn.episode, turn.turn) for turn in log.read_turns()] == [("e0-0", 0), ("e0-0", 1)]


def write_turns(path: Path, environment: int) -> None:
    log = TrajectoryLog(RunFolder(path))
    for turn in range(50):
        log.append([replace(TURN, environment=environment, turn=turn, prompt="x" * 5000)])


def test_processes_that_write_the_same_file_do_not_mix_their_lines(log: TrajectoryLog):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_turns, args=(log.path.parent, number)) for number in range(3)]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    turns = [(turn.environment, turn.turn) for turn in log.read_turns()]
    assert sorted(turns) == [(environment, turn) for environment in range(3) for turn in range(50)]


def test_an_episode_with_a_nan_reward_counts_as_unsolved(log: TrajectoryLog):
    log.append([*episode("a", turns=2, done=True, reward=math.nan), *episode("b", done=True, reward=1.0)])

    first, second = log.read_episodes()
    assert math.isnan(first.reward)
    assert (first.outcome, second.outcome) == ("unsolved", "solved")
    assert episode_names(log, EpisodeFilter(min_reward=-9.0)) == ["b"]
