"""`turnmill view`: web page of the trajectories of a run or a store."""

from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.extras import needs_extra

DEFAULT_PORT = 8600


def view(
    source: Annotated[
        str, typer.Argument(metavar="RUN_DIR|REDIS_URL", help="The run's folder, or a trajectory store.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also accept this host name, such as that of a proxy.")
    ] = None,
) -> None:
    """Show trajectories on a web page: a list with filters, turns token by token, two of them side by side."""
    from turnmill.cli.run_dirs import existing_run

    if "://" not in source:
        existing_run(Path(source))
    with needs_extra("view", "view"):
        from turnmill.trajectory_page.serve import is_loopback, serve
    if not is_loopback(host):
        typer.echo(
            f"Everybody who can reach {host} can read these trajectories: the page asks for no password.", err=True
        )
    serve(
        source,
        host=host,
        port=port,
        allowed_hosts=allow_host or (),
        on_ready=lambda address: typer.echo(f"Trajectories: {address} (stop with Ctrl-C)"),
    )
