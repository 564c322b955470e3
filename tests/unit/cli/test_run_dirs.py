from pathlib import Path

import pytest

from turnmill.cli.run_dirs import choose_run_dir, existing_run
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, dump_job, parse_job


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def leave_run(path: str, of: AgentTrainingJob) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(dump_job(of))
    return folder


def test_a_run_goes_to_the_first_free_folder_of_its_name():
    assert choose_run_dir(job(), None, resume=False) == Path("runs/goto")
    leave_run("runs/goto", job())
    assert choose_run_dir(job(), None, resume=False) == Path("runs/goto-2")
    leave_run("runs/goto-2", job())
    assert choose_run_dir(job(), None, resume=False) == Path("runs/goto-3")


def test_a_run_goes_where_it_is_told():
    Path("empty").mkdir()

    assert choose_run_dir(job(), Path("empty"), resume=False) == Path("empty")
    assert choose_run_dir(job(), Path("absent/below"), resume=False) == Path("absent/below")


def test_a_run_never_goes_into_another_one():
    leave_run("mine", job())

    with pytest.raises(SettingsError, match="--output mine already holds a run"):
        choose_run_dir(job(), Path("mine"), resume=False)


def test_a_run_never_goes_among_other_files():
    Path("home").mkdir()
    Path("home/letter").touch()

    for place in ("home", "home/letter"):
        with pytest.raises(SettingsError, match="is not an empty folder"):
            choose_run_dir(job(), Path(place), resume=False)


def test_resuming_takes_the_newest_run_of_that_name():
    leave_run("runs/goto", job())
    for number in (2, 9, 10):
        leave_run(f"runs/goto-{number}", job())
    leave_run("runs/goto-11", job(name="goto-11"))
    leave_run("runs/other", job(name="other"))

    assert choose_run_dir(job(), None, resume=True) == Path("runs/goto-10")


def test_resuming_needs_a_run():
    with pytest.raises(SettingsError, match="there is no run of goto in runs/"):
        choose_run_dir(job(), None, resume=True)
    with pytest.raises(SettingsError, match="holds no run"):
        choose_run_dir(job(), Path("absent"), resume=True)


def test_resuming_another_environment_is_refused():
    leave_run("runs/goto", job())

    with pytest.raises(SettingsError, match=r"spec\.environment is not what runs/goto/job\.yaml says"):
        choose_run_dir(job(count=16), None, resume=True)


def test_resuming_a_folder_with_a_torn_job_is_refused():
    leave_run("mine", job())
    Path("mine/job.yaml").write_text("kind: [")

    with pytest.raises(SettingsError, match="is not a job that this version can resume"):
        choose_run_dir(job(), Path("mine"), resume=True)


def test_a_command_that_needs_a_run_lists_those_there_are():
    leave_run("runs/goto", job())

    with pytest.raises(SettingsError, match="Existing runs: runs/goto"):
        existing_run(Path("runs/got"))
