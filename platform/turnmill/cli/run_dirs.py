"""Which folder a run goes to."""

import re
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.rules import FIXED
from turnmill.jobs.values import Values
from turnmill.jobs.yaml_file import parse_yaml

RUNS = Path("runs")


def choose_run_dir(job: AgentTrainingJob, output: Path | None, *, resume: bool) -> Path:
    """The folder to run in: the one asked for, the newest of that name, or the first free one."""
    if resume:
        run_dir = output or _newest(job.metadata.name)
        _check_same_run(job, run_dir)
        return run_dir
    if output is None:
        return _free(job.metadata.name)
    if is_run(output):
        way_out = "Add --resume to go on with it, or choose another folder."
        raise SettingsError(f"--output {output} holds a run already. {way_out}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(f"--output {output} is no empty folder: a run has one of its own. Choose another one.")
    return output


def is_run(path: Path) -> bool:
    """Whether the folder holds a run."""
    return (path / "job.yaml").is_file()


def existing_run(path: Path) -> Path:
    """The folder, or `SettingsError` if it holds no run."""
    if is_run(path):
        return path
    runs = sorted(str(folder.parent) for folder in RUNS.glob("*/job.yaml"))
    way_out = f"There is {', '.join(runs)}." if runs else "`turnmill run JOB.yaml` makes one under runs/."
    raise SettingsError(f"{path} holds no run: there is no job.yaml in it. {way_out}")


def _free(name: str) -> Path:
    number = 1
    while (folder := _numbered(name, number)).exists():
        number += 1
    return folder


def _newest(name: str) -> Path:
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    found = []
    for file in RUNS.glob("*/job.yaml"):
        match = pattern.fullmatch(file.parent.name)
        if match and _job_in(file.parent).metadata.name == name:
            found.append((int(match[1] or 1), file.parent))
    if not found:
        raise SettingsError(f"--resume: there is no run of {name} in {RUNS}/. Leave --resume out to start one.")
    return max(found)[1]


def _numbered(name: str, number: int) -> Path:
    return RUNS / (name if number == 1 else f"{name}-{number}")


def _check_same_run(job: AgentTrainingJob, run_dir: Path) -> None:
    before, after = (Values(found, AgentTrainingJob) for found in (_job_in(existing_run(run_dir)), job))
    paths = [f"spec.{fixed.path}" for fixed in FIXED]
    if changed := [path for path in paths if before[path] != after[path]]:
        raise SettingsError(
            f"--resume: {', '.join(changed)} is not what {run_dir / 'job.yaml'} says: the checkpoints there belong "
            "to another run. Change it back, or leave --resume out to start anew."
        )


def _job_in(run_dir: Path) -> AgentTrainingJob:
    """The job as the run was started with it; its folders may have moved since."""
    file = run_dir / "job.yaml"
    try:
        return parse_job(parse_yaml(file.read_text(encoding="utf-8")).value or {})
    except JobError as error:
        raise SettingsError(f"{file} is no job that this version can go on with.\n{error}") from error
