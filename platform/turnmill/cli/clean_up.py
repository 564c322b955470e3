"""`turnmill clean-up`: deletes a run's keys from the trajectory store; the operator runs it for deleted jobs."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from turnmill.core.errors import SettingsError


def clean_up(
    run_dir: Annotated[Path, typer.Option(help="The run's folder, which identifies the run; it is not changed.")],
    store: Annotated[
        str, typer.Option(help="URL of the trajectory store.", envvar="TURNMILL_STORE_URL", show_envvar=True)
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Time that it may take.")] = 30.0,
) -> None:
    """Delete the data of a run from the trajectory store."""
    if not store:
        raise SettingsError("--store is missing. Give the URL of a trajectory store, such as redis://HOST:6379.")
    typer.echo(f"Deleted {asyncio.run(_forget(store, run_dir, seconds))} keys of {run_dir}")


async def _forget(store: str, run_dir: Path, seconds: float) -> int:
    from turnmill.observability.run_folder import RunFolder
    from turnmill.trajectories.address import with_password
    from turnmill.trajectories.clean_up import forget_run
    from turnmill.trajectories.client import StoreClient, deadline_in

    client = StoreClient(with_password(store), max_connections=1)
    try:
        return await forget_run(client, RunFolder(run_dir).run_name(), deadline=deadline_in(seconds))
    finally:
        await client.close()
