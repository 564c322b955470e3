"""`turnmill view`: web page of the trajectories of a run, of all runs in a folder, or of a store."""

from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.cluster.options import Context, NamespaceOption
from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError

DEFAULT_PORT = 8600


def view(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR|REDIS_URL|JOB", help="The run's folder, a trajectory store, or a job in a cluster."
        ),
    ],
    runs: Annotated[
        bool, typer.Option("--runs", help="List all runs in the folder, which may still be missing or empty.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also accept this host name, such as that of a proxy.")
    ] = None,
    namespace: NamespaceOption = None,
    context: Context = None,
) -> None:
    """Show trajectories on a web page: a list with filters, turns token by token, two of them side by side."""
    from turnmill.cli.run_dirs import existing_run

    if runs:
        _check_folder_of_runs(source, namespace, context)
    elif _is_in_cluster(source, namespace, context):
        from turnmill.cli.cluster.viewing import view_in_cluster

        view_in_cluster(source, host=host, port=port, namespace=namespace, context=context)
        return
    elif "://" not in source:
        existing_run(Path(source))
    with needs_extra("view", "`turnmill view`"):
        from turnmill.trajectory_page.serve import is_loopback, serve
    if not is_loopback(host):
        typer.echo(
            f"Everybody who can reach {host} can read these trajectories: the page asks for no password.", err=True
        )
    serve(
        source,
        runs=runs,
        host=host,
        port=port,
        allowed_hosts=allow_host or (),
        on_ready=lambda address: typer.echo(f"Trajectories: {address} (stop with Ctrl-C)"),
    )


def _check_folder_of_runs(source: str, namespace: str | None, context: str | None) -> None:
    """Raise SettingsError if what is given with `--runs` can be no folder of runs."""
    if namespace is not None or context is not None:
        raise SettingsError("--runs lists the runs in a folder: --namespace and --context need the name of a job.")
    if "://" in source or (Path(source).exists() and not Path(source).is_dir()):
        raise SettingsError(f"--runs: {source} is not a folder. Name the folder in which the folders of runs are.")
    if (Path(source) / "job.yaml").exists():
        raise SettingsError(f"--runs: {source} is the folder of one run. Omit --runs, or name {Path(source).parent}.")


def _is_in_cluster(source: str, namespace: str | None, context: str | None) -> bool:
    """Return whether the source is the name of a job in a cluster: options name a place, or no path has its form."""
    if namespace is not None or context is not None:
        return True
    from turnmill.cli.cluster.api import has_kubeconfig

    is_name = source.replace("-", "").isalnum() and source.islower()
    return is_name and not Path(source).exists() and has_kubeconfig()
