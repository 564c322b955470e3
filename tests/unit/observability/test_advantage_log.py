import json
import math
import tracemalloc

import numpy as np
import pytest

from turnmill.observability.advantage_log import ROWS_PER_GROUP, AdvantageLog
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

LINES = [
    {"episode": "t1-0-0", "advantage": 0.5},
    {"episode": "t1-0-1", "advantage": None},
    {"episode": "t0-0", "turn": 3, "advantages": [0.1235, None]},
    {"episode": "t0-0", "turn": 4, "advantages": [-2.0]},
]


@pytest.fixture
def log(tmp_path) -> AdvantageLog:
    folder = RunFolder(tmp_path)
    folder.create()
    return TrajectoryLog(folder).advantages


def test_advantages_of_trajectories_are_read_as_they_were_written(log):
    log.write(1, {"t1-0-0": 1 / 3, "t1-0-1": math.nan})

    assert log.read(1) == {"t1-0-0": 1 / 3, "t1-0-1": pytest.approx(math.nan, nan_ok=True)}
    assert log.read_episode(1, "t1-0-0") == ({}, 1 / 3)
    assert log.read_episode(1, "t1-0-1") == ({}, None)
    assert log.read(2) == {}


def test_token_advantages_are_kept_to_three_digits_and_within_the_range_of_half_precision(log):
    log.write_tokens(1, [("t0-0", 3, [0.123456, -2.0]), ("t0-1", 0, []), ("t0-0", 4, [1e9, math.nan])])

    assert list(log.read_tokens(1)) == [
        ("t0-0", 3, [pytest.approx(0.123456, rel=5e-4), -2.0]),
        ("t0-1", 0, []),
        ("t0-0", 4, [65504.0, None]),
    ]


def test_the_turns_of_one_episode_are_found_in_a_step_of_several_row_groups(log):
    turns = [(f"t{row % 1000}-0", row // 1000, [float(row)] * 3) for row in range(2 * ROWS_PER_GROUP)]
    log.write_tokens(1, iter(turns))

    assert log.read_episode(1, "t7-0") == ({0: [7.0] * 3, 1: [1007.0] * 3, 2: [2007.0] * 3}, None)
    assert len(list(log.read_tokens(1))) == len(turns)


def test_token_advantages_take_the_memory_of_one_row_group(log):
    tokens, num_turns = 256, 24 * ROWS_PER_GROUP
    log.write_tokens(1, [("warm", 0, [1.0])])
    tracemalloc.start()
    try:
        log.write_tokens(2, ((f"t{row}", 0, np.zeros(tokens, np.float32)) for row in range(num_turns)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < num_turns * tokens * 4 / 3


def test_a_step_costs_two_bytes_per_token_or_less(log):
    values = np.random.default_rng(0).standard_normal((64, 2000)).astype(np.float32)
    log.write_tokens(1, ((f"t{row}", 0, of_row) for row, of_row in enumerate(values)))

    (file,) = log.path.iterdir()
    assert file.stat().st_size < 2.0 * values.size


def test_advantages_of_an_older_run_are_read_from_its_json_lines(log):
    lines = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in LINES)
    (log.path / "advantages-000001.jsonl").write_text(lines)

    assert log.read(1) == {"t1-0-0": 0.5, "t1-0-1": pytest.approx(math.nan, nan_ok=True)}
    assert log.read_episode(1, "t1-0-0") == ({}, 0.5)
    assert log.read_episode(1, "t0-0") == ({3: [0.1235, None], 4: [-2.0]}, None)
    assert [turn for _, turn, _ in log.read_tokens(1)] == [3, 4]


def test_a_write_that_fails_leaves_no_file(log):
    def turns():
        yield "t0-0", 0, [1.0]
        for row in range(2 * ROWS_PER_GROUP):
            yield f"t{row}", 0, [1.0]
        raise RuntimeError("rows lost")

    with pytest.raises(RuntimeError, match="rows lost"):
        log.write_tokens(1, turns())

    assert list(log.path.iterdir()) == []


def test_no_file_is_written_without_turns(log):
    log.write_tokens(1, iter(()))

    assert list(log.path.iterdir()) == []


def test_rewinding_drops_the_advantages_of_later_steps(tmp_path, log):
    for step in (1, 2):
        log.write(step, {f"t{step}-0-0": 1.0})
        log.write_tokens(step, [(f"t{step}-0-0", 0, [1.0])])
    (log.path / "advantages-000003.jsonl").write_text("{}\n")

    TrajectoryLog(RunFolder(tmp_path)).rewind(1)

    assert sorted(file.name for file in log.path.iterdir()) == [
        "advantages-000001.parquet",
        "token-advantages-000001.parquet",
    ]
