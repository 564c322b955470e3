"""Selection of the run folder."""

import itertools
import re
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.rules import FIXED
from turnmill.jobs.values import Values
from turnmill.jobs.yaml_file import parse_yaml

RUNS = Path("runs")


def choose_run_dir(job: AgentTrainingJob, output: Path | None, *, resume: bool) -> Path:
    """Return the folder of a run: `output`, the newest run of that name to resume, or the first free one,
    which is created.

    Raises SettingsError if it cannot be used: it is not empty, or contains no run or another run to resume.
    """
    if resume:
        run_dir, previous = (output, None) if output else _newest(job.metadata.name)
        _check_same_run(job, previous or job_in(existing_run(run_dir)), run_dir)
        return run_dir
    if output is None:
        return _free(job.metadata.name)
    if is_run(output):
        way_out = "Add --resume to resume it, or choose another folder."
        raise SettingsError(f"--output {output} already holds a run. {way_out}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(
            f"--output {output} is not an empty folder: a run needs one of its own. Choose another folder."
        )
    return output


def is_run(path: Path) -> bool:
    """Return whether the folder contains a run."""
    return (path / "job.yaml").is_file()


def existing_run(path: Path) -> Path:
    """Return the folder. Raises SettingsError if it holds no run."""
    if is_run(path):
        return path
    runs = sorted(str(folder.parent) for folder in RUNS.glob("*/job.yaml"))
    way_out = f"Existing runs: {', '.join(runs)}." if runs else "`turnmill run JOB.yaml` creates one in runs/."
    raise SettingsError(f"{path} holds no run: there is no job.yaml in it. {way_out}")


def job_in(run_dir: Path) -> AgentTrainingJob:
    """Return the job with which the run was started, without checking its folders, which may have moved."""
    file = run_dir / "job.yaml"
    try:
        return parse_job(parse_yaml(file.read_text(encoding="utf-8")).value or {})
    except JobError as error:
        raise SettingsError(f"{file} is not a job that this version can read.\n{error}") from error


def _free(name: str) -> Path:
    """Create the first folder that does not exist: so two runs that start at the same moment get two."""
    for number in itertools.count(1):
        folder = _numbered(name, number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SettingsError(
                f"{folder} cannot be created: {error.strerror}. Choose a folder with --output."
            ) from error
        return folder
    raise AssertionError("numbers do not end")


def _newest(name: str) -> tuple[Path, AgentTrainingJob]:
    """Return the folder of the newest run of that name, and its job."""
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    found: dict[int, tuple[Path, AgentTrainingJob]] = {}
    for file in RUNS.glob("*/job.yaml"):
        match = pattern.fullmatch(file.parent.name)
        if match and (job := job_in(file.parent)).metadata.name == name:
            found[int(match[1] or 1)] = file.parent, job
    if not found:
        raise SettingsError(f"--resume: there is no run of {name} in {RUNS}/. Omit --resume to start one.")
    return found[max(found)]


def _numbered(name: str, number: int) -> Path:
    return RUNS / (name if number == 1 else f"{name}-{number}")


def _check_same_run(job: AgentTrainingJob, previous: AgentTrainingJob, run_dir: Path) -> None:
    before, after = Values(previous, AgentTrainingJob), Values(job, AgentTrainingJob)
    paths = [f"spec.{fixed.path}" for fixed in FIXED]
    if changed := [path for path in paths if before[path] != after[path]]:
        raise SettingsError(
            f"--resume: {', '.join(changed)} is not what {run_dir / 'job.yaml'} says: the checkpoints there belong "
            "to another run. Change it back, or omit --resume to start a new run."
        )
