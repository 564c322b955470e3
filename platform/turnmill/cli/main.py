"""The command line: `turnmill run job.yaml` and what goes with it."""

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from turnmill import __version__
from turnmill.cli.clean_up import clean_up
from turnmill.cli.retriever import retriever
from turnmill.cli.tool_server import FireStyleCommand, tool_server
from turnmill.cli.view import view
from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError

# Commands import what they need themselves: `--version` and `check` answer at once.

# Done; the run failed; the file or the command is wrong; another attempt has begun; the run failed, and would again;
# Ctrl-C or SIGTERM.
DONE, FAILED, REFUSED, STALE_ATTEMPT, FINAL, INTERRUPTED = 0, 1, 2, 3, 4, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Trains language-model agents that act over many turns.",
)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a field in place of the file, such as training.steps=3."),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; see the exit codes above."""
    try:
        app(args=arguments, prog_name="turnmill")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except SettingsError as error:
        _say(str(error), to=_errors())
        return REFUSED
    except TurnmillError as error:
        _say(f"{type(error).__name__}: {error}", to=_errors())
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
        typer.Option(help="Folder of the run; left out, the first free one of runs/NAME, runs/NAME-2 and so on."),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --output, or with the newest of that name.")
    ] = False,
    ray: Annotated[
        str,
        typer.Option(
            help="own: a Ray cluster of its own. auto: the one that this process is in, as the operator does."
        ),
    ] = "own",
) -> None:
    """Train as a job file says."""
    if ray == "auto" and job_file is None and output is None and not overrides and not resume:
        _join()
        return
    if ray != "own" or job_file is None:
        raise SettingsError(_HOW_TO_RUN)
    from turnmill.cli.progress import progress_view
    from turnmill.cli.run_dirs import choose_run_dir

    job = _load(job_file, overrides)
    run_dir = choose_run_dir(job, output, resume=resume)
    console = Console()
    replaced = [part for override in overrides or () for part in ("--set", override)]
    again = shlex.join(["turnmill", "run", str(job_file), *replaced, "--resume", "--output", str(run_dir)])
    _say(f"{'Going on with' if resume else 'Running'} {job.metadata.name} in {run_dir}", to=console)
    try:
        launch = _launch()
        with _interruptible(), progress_view(console) as view:
            launch(job, run_dir, resume=resume, on_progress=view)
    except RunFailedError as error:
        _say(f"The run failed ({error.cause}): {error}\nGo on with: {again}", to=_errors())
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        _say(f"Interrupted. Go on with: {again}", to=_errors())
        raise typer.Exit(INTERRUPTED) from None
    _say(_outcome(run_dir), to=console)


_HOW_TO_RUN = (
    "`turnmill run` takes a job file, or `--ray auto` and nothing else: then the environment says what to train. "
    "Write `turnmill run JOB.yaml`."
)


def _join() -> None:
    """One attempt in a cluster: its last line is what the cluster shows of a failure."""
    from turnmill.cli.progress import progress_view
    from turnmill.runs.attempt import Attempt
    from turnmill.runs.cluster import join
    from turnmill.runs.fence import STALE

    attempt = Attempt.from_environment()
    console = Console()
    _say(f"Attempt {attempt.number} at {attempt.job.metadata.name} in {attempt.run_dir}", to=console)
    try:
        with _interruptible(), progress_view(console) as view:
            join(attempt, on_progress=view)
    except RunFailedError as error:
        _say(f"The run failed ({error.cause}): {error}", to=_errors())
        raise typer.Exit(STALE_ATTEMPT if error.cause == STALE else FINAL if error.is_final else FAILED) from error
    except KeyboardInterrupt:
        _say("The run failed (stopped): It was told to end.", to=_errors())
        raise typer.Exit(INTERRUPTED) from None
    _say(f"Done: all {attempt.job.spec.training.steps} steps.", to=console)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, SIGTERM and the end of the terminal end the run alike; further ones do not disturb the clearing up."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)

    def interrupt(number: int, frame: object) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
def check(job_file: JobFile, overrides: Overrides = None) -> None:
    """Check a job file and start nothing."""
    from turnmill.training.agent_kinds import agent_kind

    job = _load(job_file, overrides)
    spec, kind = job.spec, agent_kind(job.spec.agent)
    model = spec.model.path or "a tiny warm-started model"
    _say(
        f"{job_file} is fine: {job.metadata.name} trains {model} on {kind.describe_environment(job)} for "
        f"{spec.training.steps} steps of {kind.describe_step(job)} ({spec.training.mode}, {spec.resources.device})."
    )


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition of AgentTrainingJob."""
    from turnmill.jobs.crd import crd_yaml

    typer.echo(crd_yaml(), nl=False)


@app.command()
def report(run_dir: RunDir) -> None:
    """Show what came out of a run, and draw its curve anew."""
    from turnmill.cli.run_dirs import existing_run
    from turnmill.observability.report import draw_curve, report_text

    undrawn = None
    try:
        draw_curve(existing_run(run_dir))
    except OSError as error:
        undrawn = error
    Console().print(report_text(run_dir))
    if undrawn:
        _say(f"The curve was not drawn: {undrawn}", to=_errors())


@app.command()
def trajectories(
    run_dir: RunDir,
    step: Annotated[int | None, typer.Option(help="Only episodes with a turn in this step.")] = None,
    episode: Annotated[str | None, typer.Option(help="Show this episode turn by turn.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only episodes that failed.")] = False,
    validation: Annotated[bool, typer.Option("--validation", help="Only episodes of validations.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --episode, show every token.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many episodes, the latest.")] = 50,
    live: Annotated[bool, typer.Option("--live", help="Those in flight, read from the trajectory store.")] = False,
) -> None:
    """List the episodes of a run, or read one of them turn by turn."""
    from turnmill.cli.run_dirs import existing_run

    if live:
        _show_live(existing_run(run_dir), episode, limit)
        return
    from turnmill.observability.run_folder import RunFolder
    from turnmill.observability.trajectory_log import EpisodeFilter, TrajectoryLog
    from turnmill.observability.trajectory_view import render_episode, render_episodes

    wanted = EpisodeFilter(
        name=episode, outcome="failed" if failed else None, step=step, validation=True if validation else None
    )
    found = TrajectoryLog(RunFolder(existing_run(run_dir))).read_episodes(wanted)
    if episode is None:
        Console().print(render_episodes(found, limit=limit))
        return
    record = next(found, None)
    if record is None:
        raise SettingsError(f"--episode {episode}: {run_dir} has no such episode. List them without --episode.")
    Console().print(render_episode(record, tokens=tokens))


def _show_live(run_dir: Path, name: str | None, limit: int) -> None:
    from turnmill.cli.live import read_live, render_trajectories, render_trajectory

    trajectories = read_live(run_dir)
    if name is None:
        Console().print(render_trajectories(trajectories, limit=limit))
        return
    found = next((trajectory for trajectory in trajectories if trajectory.name == name), None)
    if found is None:
        raise SettingsError(
            f"--episode {name}: {run_dir} has none in flight by that name. List them without --episode."
        )
    Console().print(render_trajectory(found))


app.command("tool-server", cls=FireStyleCommand)(tool_server)
app.command()(view)
app.command()(retriever)
app.command()(clean_up)


def _load(job_file: Path, overrides: Sequence[str] | None) -> Any:
    from turnmill.cli import checks
    from turnmill.jobs import JobError, load_job

    try:
        return load_job(job_file, overrides or (), checks=checks.ALL)
    except JobError as error:
        count = "one problem" if len(error.problems) == 1 else f"{len(error.problems)} problems"
        _say(f"{job_file} has {count}; nothing was started.", to=_errors())
        raise


def _launch() -> Any:
    """The trainer's entry; `SettingsError` where its libraries are not installed."""
    try:
        from turnmill.runs.local import launch
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "turnmill":
            raise
        raise SettingsError(
            f"`turnmill run` needs {error.name}, which is not installed. Install turnmill with its extra `training`."
        ) from error
    return launch


def _outcome(run_dir: Path) -> str:
    """What the reader of the last lines wants to know: how good, where, and what to do next."""
    from turnmill.cli.progress import duration
    from turnmill.observability.run_folder import RunFolder

    summary = RunFolder(run_dir).read_summary()
    first, final, seconds = (summary.get(key) for key in ("success_first", "success_final", "seconds_total"))
    took = f" in {duration(seconds)}" if seconds is not None else ""
    success = f"success {first:.2f} before, {final:.2f} after" if first is not None and final is not None else "done"
    folder = shlex.quote(str(run_dir))
    return (
        f"Done{took}: {success}. Everything is in {folder}\n"
        f"  turnmill report {folder}\n"
        f"  turnmill trajectories {folder}\n"
        f"  turnmill view {folder}"
    )


def _say(text: str, *, to: Console | None = None) -> None:
    """Print a sentence as it is: brackets in it are no markup, and its lines are not wrapped."""
    (to or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def _errors() -> Console:
    return Console(stderr=True)


if __name__ == "__main__":
    sys.exit(main())
