"""Reading of run folders that version 0.1 has written.

`run-0.1` has two steps of an agent with tools and a validation before and after; `turns-0.1` a step of an agent whose
turns are rows.
"""

import shutil
from pathlib import Path

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from turnmill.jobs.load import load_job
from turnmill.observability.progress import read_progress
from turnmill.observability.report import report_text
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import summarise
from turnmill.observability.trajectory_log import EpisodeFilter, TrajectoryLog
from turnmill.observability.trajectory_view import render_episode
from turnmill.trajectory_page.app import create_app
from turnmill.trajectory_page.source import RunSource

RUNS = Path(__file__).parent / "data"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return RunFolder(shutil.copytree(RUNS / "run-0.1", tmp_path / "run"))


def printed(renderable: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_job_of_a_0_1_run_is_read(folder):
    job = load_job(folder.job)

    assert (job.metadata.name, job.spec.training.steps, job.spec.group_size) == ("run-of-0-1", 2, 2)


def test_progress_and_metrics_of_a_0_1_run_are_read(folder):
    progress = read_progress(folder)

    assert progress is not None
    assert (progress.phase, progress.done, progress.total, progress.reward) == ("training", 2, 2, 0.25)
    assert [row["step"] for row in folder.read_metrics()] == [0, 1, 2]
    assert [row.get("turnmill/trajectories") for row in folder.read_metrics()] == [None, 4, 4]


def test_the_trajectories_of_a_0_1_run_are_read(folder):
    log = TrajectoryLog(folder)

    training = list(log.read_episodes(EpisodeFilter(validation=False)))
    validation = list(log.read_episodes(EpisodeFilter(validation=True)))

    assert sorted(each.name for each in training) == [
        f"t{step}-{task}-{sample}" for step in (1, 2) for task in (0, 1) for sample in (0, 1)
    ]
    assert len(validation) == 4
    assert sum(each.reward for each in training) == 2
    (first,) = (each for each in training if each.name == "t1-0-0")
    assert first.outcome == "solved"
    assert first.turns[0].prompt == "<sys>35-76=?<|im_end|><ast>"
    assert first.turns[0].response_ids == (12, 4, 24, 6, 20, 20, 21)
    assert first.turns[0].tool["invalid_reason"] == "No valid tool found for action"
    assert first.turns[0].seconds == {"generation": 0.069516, "tools": 0.00314}
    assert (first.turns[1].stop_reason, first.turns[1].stop_detail) == ("completed", "model_chose_to_finish")
    assert log.advantages.read(1)["t1-0-0"] == pytest.approx(0.7071057)
    assert "No valid tool" not in printed(render_episode(first, tokens=True))


@pytest.mark.parametrize("name", ["run-0.1", "turns-0.1"])
def test_lines_of_a_0_1_trajectory_log_are_rewritten_unchanged(tmp_path, name):
    folder = RunFolder(RUNS / name)
    rewritten = RunFolder(tmp_path / "again")
    rewritten.create()
    written = TrajectoryLog(rewritten)

    written.append(TrajectoryLog(folder).read_turns())
    written.append(TrajectoryLog(folder).read_turns(validation=True), validation=True)

    files = [file for file in folder.trajectories.iterdir() if not file.name.startswith("advantages")]
    assert len(files) >= 2
    for file in files:
        (again,) = written.path.glob(f"{file.stem}.*")
        assert again.read_bytes() == file.read_bytes()


def test_episodes_of_a_0_1_run_that_span_steps_are_read():
    log = TrajectoryLog(RunFolder(RUNS / "turns-0.1"))

    episodes = list(log.read_episodes(EpisodeFilter(validation=False)))

    assert {each.name for each in episodes} >= {"t0-0", "t1-0"}
    assert sum(len(each.turns) for each in episodes) == 8
    assert all(turn.seed is not None for each in episodes for turn in each.turns)


def test_the_report_of_a_0_1_run_is_printed(folder):
    assert (summarise(folder.path)["turns"], summarise(folder.path)["episodes"]) == (16, 8)

    report = printed(report_text(folder.path))

    assert "success after" in report
    assert "completed" in report


def test_the_page_of_a_0_1_run_shows_its_trajectories(folder):
    source = RunSource(folder.path)
    for _ in source.update():
        pass
    client = TestClient(create_app(source, pause_seconds=3600), base_url="http://127.0.0.1:8600")

    index, page = client.get("/"), client.get("/trajectory/t1-0-0")

    assert (index.status_code, page.status_code) == (200, 200)
    assert "t2-1-1" in index.text
    assert "model_chose_to_finish" in page.text
    assert "0.7071" in page.text
    source.close()
