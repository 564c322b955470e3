"""The job file of a command, with fields replaced by `--set`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnmill.cli.console import errors, say

if TYPE_CHECKING:
    from turnmill.jobs import AgentTrainingJob

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a field in place of the file, such as training.steps=3."),
]


def load(job_file: Path, overrides: Sequence[str] | None) -> "AgentTrainingJob":
    """Parse and check the job file. Raises JobError, after printing the number of problems."""
    from turnmill.cli import checks
    from turnmill.jobs import load_job

    return _loaded(job_file, lambda: load_job(job_file, overrides or (), checks=checks.ALL))


def load_for_cluster(job_file: Path, overrides: Sequence[str] | None) -> "AgentTrainingJob":
    """Parse the job file without checks of what is on this machine: models, tasks and classes are in the cluster."""
    from turnmill.jobs import load_job

    return _loaded(job_file, lambda: load_job(job_file, overrides or (), for_cluster=True))


def _loaded(job_file: Path, read: Callable[[], "AgentTrainingJob"]) -> "AgentTrainingJob":
    from turnmill.jobs import JobError

    try:
        return read()
    except JobError as error:
        count = "one problem" if len(error.problems) == 1 else f"{len(error.problems)} problems"
        say(f"{job_file} has {count}; nothing was started.", to=errors())
        raise
