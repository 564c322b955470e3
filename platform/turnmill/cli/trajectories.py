"""`turnmill trajectories`: episodes of a run's log, or trajectories in flight."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnmill.core.errors import SettingsError


def trajectories(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.", show_default=False)],
    step: Annotated[int | None, typer.Option(help="Only episodes with a turn in this step.")] = None,
    episode: Annotated[str | None, typer.Option(help="Show this episode turn by turn.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only episodes that failed.")] = False,
    validation: Annotated[bool, typer.Option("--validation", help="Only episodes of validations.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --episode, show every token.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many episodes, the latest.")] = 50,
    live: Annotated[bool, typer.Option("--live", help="Trajectories in flight, from the trajectory store.")] = False,
) -> None:
    """List the episodes of a run, or show one of them turn by turn."""
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
            f"--episode {name}: {run_dir} has no trajectory of that name in flight. List them without --episode."
        )
    Console().print(render_trajectory(found))
