import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.long_log import write_long_log
from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import EpisodeFilter, TrajectoryLog, TurnRecord, decode_turn
from turnmill.trajectory_page.index import Index, open_index
from turnmill.trajectory_page.log_reader import LogReader, ReadProgress
from turnmill.trajectory_page.summary import Summary

TURN = TurnRecord(
    episode="t0-0", environment=0, turn=0, step=1, policy_version=0, prompt="A ball.", response="go", action="go",
    reward=0.0, prompt_ids=(1, 2), response_ids=(4, 5), log_probs=(-0.5, -0.25), seed=3,
)  # fmt: skip
LAST = replace(TURN, turn=1, reward=1.0, done=True, stop_reason="completed")


@pytest.fixture
def log(tmp_path: Path) -> TrajectoryLog:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return TrajectoryLog(folder)


@pytest.fixture
def reader(log: TrajectoryLog, tmp_path: Path) -> Callable[[], "Reader"]:
    return lambda: Reader(log.path, tmp_path / "index.sqlite")


class Reader:
    """A log and an index that is kept in a file."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self.index = Index(place)
        self.log = LogReader(folder, self.index, run="run", environment="babyai", lock=place.with_suffix(".lock"))

    def read(self) -> list[ReadProgress]:
        return list(self.log.update())

    def found(self) -> dict[str, Summary]:
        return {summary.key: summary for summary in self.index.summaries("ORDER BY id")}

    def turns(self, key: str) -> list[TurnRecord | None]:
        summary = self.index.find(key)
        assert summary is not None
        lines = []
        for place in self.index.turn_positions(summary.id):
            content = (self.folder / place.file).read_bytes()
            lines.append(content[place.start : place.start + place.length])
        return [decode_turn(json.loads(line)) for line in lines]


def test_a_summary_is_the_sum_of_its_turns(log, reader):
    log.append(
        [replace(TURN, seconds={"generation": 0.5}), replace(LAST, policy_version=2, environment_name="sokoban")]
    )
    at = reader()

    at.read()

    summary = at.found()["t0-0"]
    assert (summary.turns, summary.tokens, summary.reward, summary.seconds) == (2, 4, 1.0, 0.5)
    assert (summary.outcome, summary.reason, summary.open) == ("solved", "completed", 0)
    assert (summary.first_version, summary.last_version) == (0, 2)
    assert (summary.environment, summary.kind, summary.run) == ("babyai", "training", "run")
    assert at.turns("t0-0") == [
        replace(TURN, seconds={"generation": 0.5}),
        replace(LAST, policy_version=2, environment_name="sokoban"),
    ]


def test_the_index_agrees_with_the_log_on_every_trajectory(log, reader):
    write_long_log(log.path.parent, trajectories=120, per_step=50)
    at = reader()

    at.read()

    logged = {(each.name, each.outcome, len(each.turns), each.reward) for each in log.read_episodes(EpisodeFilter())}
    indexed = {
        (each.name, each.outcome, len(at.index.turn_positions(each.id)), each.reward) for each in at.index.summaries()
    }
    assert len(logged) == 120
    assert indexed == logged


def test_later_lines_are_indexed(log, reader):
    log.append([TURN])
    at = reader()
    at.read()
    first = at.found()["t0-0"]
    log.append([replace(LAST, step=2)])

    at.read()

    second = at.found()["t0-0"]
    assert (first.outcome, first.turns) == ("unfinished", 1)
    assert (second.outcome, second.turns, second.id) == ("solved", 2, first.id)
    assert (second.first_step, second.last_step) == (1, 2)


def test_no_line_is_read_twice(log, reader):
    log.append([TURN, LAST])
    reader().read()

    again = reader()
    revision = again.index.revision
    readings = again.read()

    assert readings == []
    assert again.index.revision == revision


def test_another_process_continues_where_the_first_one_ended(log, reader):
    log.append([TURN])
    first = reader()
    first.read()
    first.log.close()
    log.append([LAST])

    second = reader()
    second.read()

    assert second.found()["t0-0"].turns == 2


def test_an_incomplete_line_is_read_once_it_is_complete(log, reader):
    log.append([TURN, LAST])
    (file,) = log.path.glob("step-000001.*")
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    at = reader()
    at.read()
    before = at.found()["t0-0"].turns
    file.write_bytes(whole)

    at.read()

    assert (before, at.found()["t0-0"].turns) == (1, 2)


def test_an_incomplete_line_is_skipped(log, reader):
    log.append([TURN])
    (file,) = log.path.glob("step-000001.*")
    atomic_files.append(file, b'{"episode":"t9-9","prompt":"{\\"episode\\":')
    log.append([LAST])
    at = reader()

    at.read()

    assert at.found().keys() == {"t0-0"}
    assert at.found()["t0-0"].turns == 2


def test_files_of_several_writers_and_of_older_runs_are_indexed(log, reader):
    log.append([TURN, LAST])
    (file,) = log.path.glob("step-000001.*")
    content = file.read_bytes()
    for name, episode in (("step-000001.jsonl", b"t1-0"), ("step-000001.other-node-7-5c1e.jsonl", b"t2-0")):
        (log.path / name).write_bytes(content.replace(b"t0-0", episode))
    at = reader()

    at.read()

    assert {name: summary.turns for name, summary in at.found().items()} == {"t0-0": 2, "t1-0": 2, "t2-0": 2}


def test_lines_that_are_not_turns_are_skipped(log, reader):
    (log.path / "step-000001.jsonl").write_bytes(b'{"episode":"t1-1"}\n[]\n{"episode":5,"turn":"x"}\n\xff\xfe\n\n')
    at = reader()

    at.read()

    assert at.found() == {}


def test_a_run_rewound_to_a_checkpoint_is_indexed_again(log, reader):
    log.append([TURN, replace(LAST, step=2)])
    at = reader()
    at.read()
    log.rewind(1)
    log.append([replace(LAST, step=2, reward=0.0, stop_reason="max_turns")])

    at.read()

    assert at.found()["t0-0"].outcome == "unsolved"
    assert [turn.stop_reason for turn in at.turns("t0-0")] == [None, "max_turns"]


def test_a_repeated_episode_name_gets_a_new_key(log, reader):
    failed = replace(TURN, response="", response_ids=(), done=True, stop_reason="failed", failed_cause="environment")
    log.append([failed, TURN, LAST], validation=True)
    at = reader()

    at.read()

    assert {key: each.outcome for key, each in at.found().items()} == {"t0-0@1": "failed", "t0-0@1~2": "solved"}
    assert at.found()["t0-0@1"].turns == 0


def test_trajectories_of_one_environment_seed_and_prompt_have_the_same_task(log, reader):
    log.append([replace(LAST, episode="v0-0", turn=0, step=step) for step in (1, 2)], validation=True)
    log.append([replace(LAST, episode="v1-0", turn=0, environment=1)], validation=True)
    log.append([replace(LAST, episode="v2-0", turn=0, seed=4), replace(LAST, episode="v3-0", turn=0, prompt="A box.")])
    at = reader()

    at.read()

    tasks = {key: each.task for key, each in at.found().items()}
    assert tasks.pop("v0-0@2") == tasks["v0-0@1"]
    assert len(set(tasks.values())) == 4


def test_one_of_two_pages_of_a_run_writes_the_index_and_both_show_it(log, reader):
    log.append([TURN, LAST])
    first, second = reader(), reader()
    first.read()

    readings = second.read()

    assert readings == []
    assert second.found().keys() == {"t0-0"}


def test_an_interrupted_update_is_continued_later(log, reader, monkeypatch):
    monkeypatch.setattr("turnmill.trajectory_page.log_reader.CHUNK_BYTES", 1000)
    write_long_log(log.path.parent, trajectories=20)
    at = reader()
    update = at.log.update()
    next(update)
    next(update)
    update.close()
    part = len(at.found())

    at.read()

    assert 0 < part < 20
    assert len(at.found()) == 20


def test_a_run_that_has_no_log_yet_has_no_trajectories(log, reader):
    log.path.rmdir()
    at = reader()

    at.read()

    assert at.found() == {}


def test_a_corrupt_index_is_rebuilt(log, tmp_path):
    log.append([TURN, LAST])
    place = tmp_path / "index.sqlite"
    place.write_bytes(b"no index at all" * 1000)

    index = open_index(place)
    list(LogReader(log.path, index, run="run", environment="babyai").update())

    assert [each.key for each in index.summaries()] == ["t0-0"]


def test_an_index_of_another_version_is_rebuilt(log, reader):
    log.append([TURN, LAST])
    at = reader()
    at.read()
    with at.index.transaction() as connection:
        connection.execute("PRAGMA user_version = 0")
    at.log.close()
    at.index.close()

    again = reader()
    before = again.found()
    again.read()

    assert before == {}
    assert again.found().keys() == {"t0-0"}
