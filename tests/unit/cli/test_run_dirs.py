from pathlib import Path

import pytest

from turnmill.cli.run_dirs import choose_run_dir, existing_run
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, dump_job, parse_job


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def job(name: str = "goto", count: int = 32) -> AgentTrainingJob:
    return parse_job(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": name},
            "spec": {
                "model": {"warmStart": {}},
                "agent": {"prompt": "compact"},
                "environment": {"name": "babyai", "count": count},
                "training": {"steps": 2, "turnsPerStep": 256},
            },
        }
    )


def make_run(path: str, run_job: AgentTrainingJob) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(dump_job(run_job))
    return folder


def test_a_run_uses_the_first_free_folder_of_its_name():
    make_run("runs/goto", job())
    make_run("runs/goto-3", job())

    assert choose_run_dir(job(), None, resume=False) == Path("runs/goto-2")
    # Also while the earlier run has written nothing yet.
    assert choose_run_dir(job(), None, resume=False) == Path("runs/goto-4")


def test_a_folder_that_cannot_be_created_is_refused():
    Path("runs").touch()

    with pytest.raises(SettingsError, match=r"runs/goto cannot be created: .* Choose a folder with --output"):
        choose_run_dir(job(), None, resume=False)


def test_a_run_uses_the_output_folder_of_the_command():
    Path("empty").mkdir()

    assert choose_run_dir(job(), Path("empty"), resume=False) == Path("empty")
    assert choose_run_dir(job(), Path("absent/below"), resume=False) == Path("absent/below")


def test_an_output_folder_that_holds_a_run_is_refused():
    make_run("mine", job())

    with pytest.raises(SettingsError, match="--output mine already holds a run"):
        choose_run_dir(job(), Path("mine"), resume=False)


def test_an_output_folder_with_other_files_is_refused():
    Path("home").mkdir()
    Path("home/letter").touch()

    for place in ("home", "home/letter"):
        with pytest.raises(SettingsError, match="is not an empty folder"):
            choose_run_dir(job(), Path(place), resume=False)


def test_resuming_takes_the_newest_run_of_that_name():
    make_run("runs/goto", job())
    for number in (2, 9, 10):
        make_run(f"runs/goto-{number}", job())
    make_run("runs/goto-11", job(name="goto-11"))
    make_run("runs/other", job(name="other"))

    assert choose_run_dir(job(), None, resume=True) == Path("runs/goto-10")


def test_resuming_without_a_run_is_refused():
    with pytest.raises(SettingsError, match="there is no run of goto in runs/"):
        choose_run_dir(job(), None, resume=True)
    with pytest.raises(SettingsError, match="holds no run"):
        choose_run_dir(job(), Path("absent"), resume=True)


def test_resuming_another_environment_is_refused():
    make_run("runs/goto", job())

    with pytest.raises(SettingsError, match=r"spec\.environment is not what runs/goto/job\.yaml says"):
        choose_run_dir(job(count=16), None, resume=True)


def test_resuming_a_folder_with_an_unreadable_job_is_refused():
    make_run("mine", job())
    Path("mine/job.yaml").write_text("kind: [")

    with pytest.raises(SettingsError, match="is not a job that this version can read"):
        choose_run_dir(job(), Path("mine"), resume=True)


def test_a_command_on_an_unknown_run_lists_the_existing_runs():
    make_run("runs/goto", job())

    with pytest.raises(SettingsError, match="Existing runs: runs/goto"):
        existing_run(Path("runs/got"))
