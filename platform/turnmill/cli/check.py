"""`turnmill check`: whether a job file is right, and with --explain, whether the job fits its GPUs."""

from typing import Annotated

import typer
from rich.console import Console

from turnmill.cli.console import say
from turnmill.cli.job_file import JobFile, Overrides, load
from turnmill.core.errors import SettingsError


def check(
    job_file: JobFile,
    overrides: Overrides = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show which process runs where, and what each GPU holds.")
    ] = False,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="GIB", help="Memory of a GPU, if its accelerator does not tell.", show_default=False
        ),
    ] = None,
) -> None:
    """Check a job file without starting anything; with --explain, also whether it fits its GPUs."""
    from turnmill.training.agent_kinds import agent_kind

    job = load(job_file, overrides)
    spec, kind = job.spec, agent_kind(job.spec.agent)
    model = spec.model.path or "a tiny warm-started model"
    if spec.model.fine_tune is not None:
        model = f"{model}, fine-tuned on {spec.model.fine_tune.source},"
    if spec.fine_tuning is not None:
        if explain:
            raise SettingsError("--explain: the memory of a fine-tuning is not estimated. Omit it.")
        say(
            f"{job_file} is fine: {job.metadata.name} fine-tunes {model} on {spec.fine_tuning.source} for "
            f"{spec.training.steps} steps of {spec.fine_tuning.batch_size} rows ({spec.resources.device})."
        )
        return
    does = "trains" if spec.training.steps else "evaluates"
    how_long = f"for {spec.training.steps} steps of {kind.describe_step(job)}" if spec.training.steps else "once"
    say(
        f"{job_file} is fine: {job.metadata.name} {does} {model} on {kind.describe_environment(job)} {how_long} "
        f"({spec.training.mode}, {spec.resources.device})."
    )
    if explain:
        from turnmill.cli.explain import explain as explain_job

        explain_job(job, gpu_memory, Console())
