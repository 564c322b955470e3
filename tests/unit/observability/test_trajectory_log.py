import json
import math
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
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


def only_file(log: TrajectoryLog, kind_and_step: str) -> Path:
    """Return the file of the only process that has written turns of a step."""
    (file,) = log.path.glob(f"{kind_and_step}.*")
    return file


def file_kinds(log: TrajectoryLog) -> list[str]:
    """Return the kinds and steps of the log's files."""
    return sorted(file.name.partition(".")[0] for file in log.path.iterdir())


def episode_names(log: TrajectoryLog, episode_filter: EpisodeFilter) -> list[str]:
    return [found.name for found in log.read_episodes(episode_filter)]


def test_a_turn_is_read_as_it_was_written(log: TrajectoryLog):
    log.append([TURN])

    assert list(log.read_turns()) == [TURN]


def test_default_values_are_not_written(log: TrajectoryLog):
    log.append([TURN])

    (line,) = only_file(log, "step-000001").read_text().splitlines()
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

    assert file_kinds(log) == ["step-000001", "step-000012", "validation-000000"]


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

    assert file_kinds(log) == ["step-000009", "step-000010", "validation-000000"]


def test_an_incomplete_line_is_skipped(log: TrajectoryLog):
    log.append([TURN])
    atomic_files.append(only_file(log, "step-000001"), b'{"episode":"e1-0","prompt":"{\\"episode\\":')
    log.append([replace(TURN, turn=1)])

    assert [(turn.episode, turn.turn) for turn in log.read_turns()] == [("e0-0", 0), ("e0-0", 1)]


def write_turns(path: Path, environment: int) -> None:
    log = TrajectoryLog(RunFolder(path))
    for turn in range(50):
        log.append([replace(TURN, environment=environment, turn=turn, prompt="x" * 5000)])


def nfs_append(barrier: Barrier) -> Callable[..., None]:
    """Return an append as on NFS: clients learn the length of a file before any of them writes at that offset."""

    def append(path: Path, content: bytes, *, patience: float) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        length = os.fstat(descriptor).st_size
        barrier.wait(60)
        os.pwrite(descriptor, content, length)
        os.close(descriptor)

    return append


def write_turns_over_nfs(path: Path, environment: int, barrier: Barrier) -> None:
    atomic_files.append = nfs_append(barrier)
    log = TrajectoryLog(RunFolder(path))
    for turn in range(10):
        log.append([replace(TURN, environment=environment, turn=turn)])


def test_processes_of_two_nodes_lose_no_turns_on_storage_without_atomic_appends(log: TrajectoryLog):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    # Children of a process that has written, too.
    log.append([replace(TURN, environment=2)])
    writers = [context.Process(target=write_turns_over_nfs, args=(log.path.parent, node, barrier)) for node in range(2)]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)

    assert [writer.exitcode for writer in writers] == [0, 0]
    turns = sorted((turn.environment, turn.turn) for turn in log.read_turns())
    assert turns == [*((node, turn) for node in range(2) for turn in range(10)), (2, 0)]
    assert len(list(log.path.iterdir())) == 3


def test_the_single_file_of_an_older_run_is_read_before_those_of_its_resumed_attempt(log: TrajectoryLog):
    line = json.dumps({name: getattr(TURN, name) for name in TurnRecord.__slots__})
    (log.path / "step-000001.jsonl").write_text(line + "\n")
    (log.path / "step-000003.jsonl").write_text(line.replace('"step": 1', '"step": 3') + "\n")
    (log.path / "validation-000001.jsonl").write_text(line + "\n")

    log.rewind(1)
    log.append([replace(TURN, turn=turn, step=step) for turn, step in ((3, 10), (2, 2), (1, 1))])
    log.append([replace(TURN, episode="e5-0")], validation=True)

    assert [(turn.step, turn.turn) for turn in log.read_turns()] == [(1, 0), (1, 1), (2, 2), (10, 3)]
    assert [found.name for found in log.read_validation(1)] == ["e0-0", "e5-0"]


def test_processes_that_write_the_same_step_do_not_mix_their_lines(log: TrajectoryLog):
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


def test_a_sample_has_all_trajectories_of_a_task_or_none(log: TrajectoryLog):
    sampled = TrajectoryLog(RunFolder(log.path.parent), sample_share=0.25)

    for task in range(200):
        for sample in range(3):
            sampled.append(episode(f"t1-{task}-{sample}", done=True))

    recorded = Counter(name.rpartition("-")[0] for name in episode_names(log, EpisodeFilter()))
    assert set(recorded.values()) == {3}
    assert 30 < len(recorded) < 70


def test_a_sample_of_slots_has_some_episodes_of_each(log: TrajectoryLog):
    sampled = TrajectoryLog(RunFolder(log.path.parent), sample_share=0.5)

    for number in range(40):
        sampled.append(episode(f"t0-{number}", done=True))

    assert 8 < len(episode_names(log, EpisodeFilter())) < 32


def test_failed_trajectories_and_validations_are_recorded_outside_the_sample(log: TrajectoryLog):
    sampled = TrajectoryLog(RunFolder(log.path.parent), sample_share=1e-9)

    sampled.append(episode("t1-0-0", turns=2, done=True))
    sampled.append(episode("t1-1-0", turns=2, stop_reason="failed", failed_cause="tool_timeout"))
    sampled.append(episode("v1-0-0", done=True), validation=True)

    failed, validation = log.read_episodes()
    assert (failed.name, len(failed.turns), failed.outcome) == ("t1-1-0", 2, "failed")
    assert (validation.name, validation.validation) == ("v1-0-0", True)


def test_records_of_old_steps_are_deleted_except_validations(log: TrajectoryLog):
    for step in (1, 2, 3):
        log.append(episode(f"t{step}-0-0", step=step, done=True))
        log.append(episode(f"v{step}-0-0", step=step, done=True), validation=True)
        log.advantages.write(step, {f"t{step}-0-0": 1.0})
        log.advantages.write_tokens(step, [(f"t{step}-0-0", 0, [1.0])])

    log.drop_before(3)

    assert file_kinds(log) == [
        "advantages-000003", "step-000003", "token-advantages-000003",
        "validation-000001", "validation-000002", "validation-000003",
    ]  # fmt: skip
