"""Command line of turnmill: the commands of a run, and the entry points of the other programs."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from turnmill import __version__
from turnmill.cli.call_tool import call_tool
from turnmill.cli.check import check
from turnmill.cli.clean_up import clean_up
from turnmill.cli.cluster import commands as cluster
from turnmill.cli.console import errors, say
from turnmill.cli.convert import app as convert
from turnmill.cli.doctor import doctor
from turnmill.cli.evaluate import evaluate
from turnmill.cli.exit_codes import DONE, FAILED, FINAL, INTERRUPTED, REFUSED, STALE_ATTEMPT
from turnmill.cli.export import export
from turnmill.cli.extras import needs_extra
from turnmill.cli.fetch_models import fetch_models
from turnmill.cli.gateway import gateway
from turnmill.cli.interruption import interruptible
from turnmill.cli.job_file import Overrides, load
from turnmill.cli.retriever import retriever
from turnmill.cli.serve_environment import serve_environment
from turnmill.cli.tool_server import FireStyleCommand, tool_server
from turnmill.cli.trajectories import trajectories
from turnmill.cli.view import view
from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError

if TYPE_CHECKING:
    from turnmill.runs.local import RunResult

# Commands import their dependencies inside of their functions, so that `--version` and `check` start fast.

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Trains language-model agents that act over many turns.",
)

IN_CLUSTER = "Jobs in a cluster"
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.", show_default=False)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        app(args=arguments, prog_name="turnmill")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except SettingsError as error:
        say(str(error), to=errors())
        return REFUSED
    except TurnmillError as error:
        say(f"{type(error).__name__}: {error}", to=errors())
        return FAILED
    return DONE


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnmill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    job_file: Annotated[
        Path | None,
        typer.Argument(metavar="JOB.yaml", help="The job file; none with `--ray auto`.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; if omitted, the first free one of runs/NAME, runs/NAME-2 and so on."),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --output, or the newest run of that name.")
    ] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Only validate the initial policy, without learning: training.steps=0.")
    ] = False,
    ray: Annotated[
        str,
        typer.Option(
            help="own: start a Ray cluster for the run. auto: use that of this process, as the operator does."
        ),
    ] = "own",
) -> None:
    """Run the training of a job file."""
    if evaluate:
        overrides = [*(overrides or ()), "training.steps=0"]
    if ray == "auto" and job_file is None and output is None and not overrides and not resume:
        _run_attempt()
        return
    if ray != "own" or job_file is None:
        raise SettingsError(_RUN_USAGE)
    from turnmill.cli.progress import progress_view
    from turnmill.cli.run_dirs import choose_run_dir

    job = load(job_file, overrides)
    run_dir = choose_run_dir(job, output, resume=resume)
    console = Console()
    replaced = [part for override in overrides or () for part in ("--set", override)]
    resume_command = shlex.join(["turnmill", "run", str(job_file), *replaced, "--resume", "--output", str(run_dir)])
    say(f"{'Resuming' if resume else 'Running'} {job.metadata.name} in {run_dir}", to=console)
    try:
        launch = _launch()
        with interruptible(), progress_view(console) as view:
            launch(job, run_dir, resume=resume, on_progress=view)
    except RunFailedError as error:
        say(f"The run failed ({error.cause}): {error}\nResume it with: {resume_command}", to=errors())
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        say(f"Interrupted. Resume it with: {resume_command}", to=errors())
        raise typer.Exit(INTERRUPTED) from None
    say(_result_text(run_dir), to=console)


_RUN_USAGE = (
    "`turnmill run` takes a job file, or `--ray auto` and nothing else: then environment variables name the job. "
    "Write `turnmill run JOB.yaml`."
)


def _run_attempt() -> None:
    """Run one attempt in a cluster; after a failure its last line is shown in the job's status."""
    from turnmill.cli.progress import progress_view
    from turnmill.runs.attempt import Attempt
    from turnmill.runs.cluster import join
    from turnmill.runs.fence import STALE

    attempt = Attempt.from_environment()
    console = Console()
    say(f"Attempt {attempt.number} at {attempt.job.metadata.name} in {attempt.run_dir}", to=console)
    try:
        with interruptible(), progress_view(console) as view:
            join(attempt, on_progress=view)
    except RunFailedError as error:
        say(f"The run failed ({error.cause}): {error}", to=errors())
        raise typer.Exit(STALE_ATTEMPT if error.cause == STALE else FINAL if error.is_final else FAILED) from error
    except KeyboardInterrupt:
        say("The run failed (stopped): it received a signal to stop.", to=errors())
        raise typer.Exit(INTERRUPTED) from None
    say(f"Done: all {attempt.job.spec.training.steps} steps.", to=console)


app.command()(check)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition of AgentTrainingJob."""
    from turnmill.jobs.crd import crd_yaml

    typer.echo(crd_yaml(), nl=False)


@app.command()
def report(
    run_dir: RunDir,
    other: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR", help="A second run, to compare with.", show_default=False)
    ] = None,
) -> None:
    """Show the results of a run, and redraw its curve; or compare two runs by their last validations."""
    from turnmill.cli.run_dirs import existing_run
    from turnmill.observability.comparison import comparison_text
    from turnmill.observability.evaluation import comparison_lines, read_results
    from turnmill.observability.report import draw_curve, report_text

    if other is not None:
        a, b = read_results(existing_run(run_dir)), read_results(existing_run(other))
        if a and b:
            say("\n".join(comparison_lines(a, b)))
        else:
            Console().print(comparison_text(run_dir, other))
        return
    draw_error = None
    try:
        draw_curve(existing_run(run_dir))
    except OSError as error:
        draw_error = error
    Console().print(report_text(run_dir))
    if draw_error:
        say(f"The curve was not drawn: {draw_error}", to=errors())


app.command("tool-server", cls=FireStyleCommand)(tool_server)
app.command("call-tool", cls=FireStyleCommand)(call_tool)
app.command()(gateway)
app.command()(serve_environment)
app.command()(doctor)
app.command()(evaluate)
app.command()(export)
app.command()(trajectories)
app.command()(view)
app.command()(retriever)
app.command()(clean_up)
app.command()(fetch_models)
app.add_typer(convert, name="convert")
for command in cluster.COMMANDS:
    app.command(rich_help_panel=IN_CLUSTER)(command)


def _launch() -> "Callable[..., RunResult]":
    """Import the function that runs a training. Raises SettingsError if its libraries are not installed."""
    with needs_extra("training", "`turnmill run`"):
        from turnmill.runs.local import launch
    return launch


def _result_text(run_dir: Path) -> str:
    """Return the last lines of a run: its success, its folder and the commands that show more."""
    from turnmill.cli.progress import duration
    from turnmill.observability.run_folder import RunFolder

    summary = RunFolder(run_dir).read_summary()
    first, final, seconds = (summary.get(key) for key in ("success_first", "success_final", "seconds_total"))
    took = f" in {duration(seconds)}" if seconds is not None else ""
    success = "done"
    if first is not None and final is None:
        success = f"success {first:.2f}{_interval_text(summary.get('success_first_interval'))}"
    if first is not None and final is not None:
        before, after = (_interval_text(summary.get(f"success_{when}_interval")) for when in ("first", "final"))
        success = f"success {first:.2f}{before} before, {final:.2f}{after} after"
    losses = [row["val/loss"] for row in RunFolder(run_dir).read_metrics() if "val/loss" in row]
    if losses:
        success = f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after"
    folder = shlex.quote(str(run_dir))
    return (
        f"Done{took}: {success}. Everything is in {folder}\n"
        f"  turnmill report {folder}\n"
        f"  turnmill trajectories {folder}\n"
        f"  turnmill view {folder}"
    )


def _interval_text(interval: Sequence[float] | None) -> str:
    """Format a 95 % interval, such as ` (0.31 to 0.43)`; empty if there is none."""
    return f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""


if __name__ == "__main__":
    sys.exit(main())
