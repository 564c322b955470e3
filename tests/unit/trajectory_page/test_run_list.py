import os
from pathlib import Path

import pytest

from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.trajectory_page import run_list
from turnmill.trajectory_page.run_list import PAGE_SIZE, RunList
from turnmill.trajectory_page.run_state import read_state


def new_run(path: Path, *, beat: float = 1000.0) -> RunFolder:
    made = RunFolder(path)
    made.create()
    made.write_job("spec: {}\n")
    os.utime(made.heartbeat, (beat, beat))
    return made


def test_runs_are_listed_newest_progress_first_and_filtered_by_name(tmp_path):
    for number, name in enumerate(("a-1", "b-1", "a-2")):
        new_run(tmp_path / name, beat=1000.0 + number)
    runs = RunList(tmp_path)

    assert [row.name for row in runs.fetch_page("", 1).rows] == ["a-2", "b-1", "a-1"]
    assert [row.name for row in runs.fetch_page("a-", 1).rows] == ["a-2", "a-1"]


def test_only_the_states_of_the_runs_of_a_page_are_read_and_only_once_in_a_while(tmp_path, monkeypatch):
    for number in range(PAGE_SIZE + 5):
        new_run(tmp_path / f"run-{number}", beat=1000.0 + number)
    read: list[str] = []
    monkeypatch.setattr(run_list, "read_state", lambda folder: (read.append(folder.path.name), read_state(folder))[1])
    runs = RunList(tmp_path, listing_seconds=3600)

    first, second, beyond = runs.fetch_page("", 1), runs.fetch_page("", 2), runs.fetch_page("", 99)
    runs.fetch_page("", 1)

    assert (len(first.rows), len(second.rows), first.total, first.pages) == (PAGE_SIZE, 5, PAGE_SIZE + 5, 2)
    assert beyond == second
    assert sorted(read) == sorted(f"run-{number}" for number in range(PAGE_SIZE + 5))


def test_a_list_reads_no_log(tmp_path):
    run = new_run(tmp_path / "run")
    run.trajectories.rmdir()
    run.trajectories.symlink_to("/nowhere")
    run.metrics.mkdir()

    assert RunList(tmp_path).fetch_page("", 1).rows[0].state.text.startswith("starting")


def test_the_folder_is_not_read_again_for_some_seconds(tmp_path):
    new_run(tmp_path / "a")
    seldom, always = RunList(tmp_path, listing_seconds=3600), RunList(tmp_path, listing_seconds=0)
    before = len(seldom.entries()), len(always.entries()), always.revision
    new_run(tmp_path / "b")

    assert before == (1, 1, 1)
    assert (len(seldom.entries()), len(always.entries()), always.revision) == (1, 2, 2)


def test_a_folder_that_cannot_be_read_leaves_the_list_as_it_was(tmp_path, monkeypatch):
    new_run(tmp_path / "a")
    runs = RunList(tmp_path, listing_seconds=0)
    runs.entries()

    def fail(_: Path) -> None:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(run_list.os, "scandir", fail)
        names = [entry.name for entry in runs.entries()]
        problem = runs.problem
    runs.entries()

    assert names == ["a"]
    assert problem == f"{tmp_path} cannot be read: Stale file handle"
    assert runs.problem == ""


def test_links_out_of_the_folder_and_older_attempts_are_no_runs(tmp_path):
    new_run(tmp_path / "elsewhere")
    team = tmp_path / "team-a"
    new_run(team / "run.attempt-2")
    (team / "run").symlink_to("run.attempt-2")
    (team / "out").symlink_to("../elsewhere")
    (team / "loop").symlink_to("loop")
    runs = RunList(team)

    assert [entry.name for entry in runs.entries()] == ["run"]
    assert runs.find("run") == team / "run"
    for name in (
        "out",
        "loop",
        "run.attempt-2",
        "..",
        "../elsewhere",
        "",
        ".",
        "x" * 300,
        "\0",
        "\udc80",
        "none",
        "run/.",
    ):
        assert runs.find(name) is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("progress.json", '{"phase": "training", "done": 1, "total": 2, "reward": "much"}'),
        ("progress.json", "[]"),
        ("progress.json", '{"done": 1}'),
        ("failure.json", '{"mess'),
        ("failure.json", '{"other": 1}'),
        ("failure.json", "7"),
        ("logs/marks.jsonl", '{"time": 1}\n'),
    ],
)
def test_a_file_that_is_broken_is_a_state_of_its_run(tmp_path, file, content):
    run = new_run(tmp_path / "run")
    write_progress(run, Progress("training", 1, 2))
    (run.path / file).write_text(content)

    assert read_state(run).name == "unknown"


def test_a_progress_that_is_half_written_is_left_out(tmp_path):
    run = new_run(tmp_path / "run")
    run.progress.write_text('{"phase": "trai')

    assert read_state(run).text.startswith("starting")
