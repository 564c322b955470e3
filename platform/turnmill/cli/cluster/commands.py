"""`turnmill submit`, `jobs`, `describe`, `logs`, `stop`, `resume`, `delete` and `fetch`: jobs in a cluster."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnmill.cli.cluster.options import (
    KIND_NAME,
    Context,
    JobArgument,
    JobArguments,
    NamespaceOption,
    Output,
    OutputOption,
)
from turnmill.cli.console import errors, say
from turnmill.cli.job_file import JobFile, Overrides
from turnmill.core.errors import SettingsError

if TYPE_CHECKING:
    from turnmill.cli.cluster.api import Cluster
    from turnmill.cli.cluster.resource import Resource

# The client and what needs it are imported inside of the functions: it takes more than a second.

FAILED, INTERRUPTED = 1, 130
POLL_SECONDS, DELETE_SECONDS = 2.0, 180.0
OUTAGE_SECONDS = 300.0
"""How long a job is watched without an answer of the API server."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only have the API server check the job.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show the job's progress until it ends.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job is gone.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")]


def submit(
    job_file: JobFile,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the job, in place of the one in the file.")] = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    output: OutputOption = None,
    namespace: NamespaceOption = None,
    context: Context = None,
) -> None:
    """Create a job in the cluster from a job file."""
    from turnmill.cli.cluster.api import JOBS, Cluster, ClusterError
    from turnmill.cli.job_file import load_for_cluster
    from turnmill.jobs.versions import changed_fields

    renamed = [*(overrides or ()), *([f"metadata.name={name}"] if name else [])]
    job = load_for_cluster(job_file, renamed)
    # Of file and options the more explicit one decides, as with kubectl, which refuses two that differ.
    cluster = Cluster.connect(context, namespace or job.metadata.namespace)
    manifest = changed_fields(job)
    manifest["metadata"] = {**manifest["metadata"], "namespace": cluster.namespace}
    try:
        created = cluster.create(JOBS, manifest, dry_run=dry_run)
    except ClusterError as error:
        if error.code != 409:
            raise
        raise SettingsError(
            f"Namespace {cluster.namespace} already has a job {job.metadata.name}. Choose another name with --name, or "
            f"delete it with `turnmill delete {job.metadata.name}`."
        ) from error
    if output:
        _print([created], output, single=True)
    else:
        say(f"{KIND_NAME}/{job.metadata.name} created{' (dry run)' if dry_run else ''}")
    if watch and not dry_run:
        _watch(cluster, job.metadata.name)


def jobs(
    name: Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job.", show_default=False)] = None,
    all_namespaces: AllNamespaces = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Of one job: show its progress until it ends.")] = False,
    output: OutputOption = None,
    namespace: NamespaceOption = None,
    context: Context = None,
) -> None:
    """List the jobs of a namespace."""
    from turnmill.cli.cluster.api import JOBS, Cluster
    from turnmill.cli.cluster.job_text import table_lines

    if watch and name is None:
        raise SettingsError("--watch needs the name of a job. List all of them without it.")
    if name is not None and all_namespaces:
        raise SettingsError("--all-namespaces: a job's name belongs to one namespace. Name that with --namespace.")
    cluster = Cluster.connect(context, namespace)
    if watch and name is not None:
        _watch(cluster, name)
        return
    if output in (None, "wide"):
        table = cluster.table(JOBS, name, all_namespaces=all_namespaces)
        if not table["rows"]:
            say(f"No jobs found in {'any namespace' if all_namespaces else f'namespace {cluster.namespace}'}.")
            return
        for line in table_lines(table, wide=output == "wide", namespaces=all_namespaces):
            say(line)
        return
    found = [cluster.get(JOBS, name)] if name else cluster.list(JOBS, all_namespaces=all_namespaces)
    _print(found, output, single=name is not None)


def describe(name: JobArgument, namespace: NamespaceOption = None, context: Context = None) -> None:
    """Show a job's state, conditions, pods and events."""
    from turnmill.cli.cluster.api import EVENTS, JOBS, Cluster
    from turnmill.cli.cluster.job_text import description
    from turnmill.cli.cluster.pods import pods_of

    cluster = Cluster.connect(context, namespace)
    job = cluster.get(JOBS, name)
    pods = pods_of(cluster, job)
    parts = [cluster.list(EVENTS, fields=f"involvedObject.uid={found['metadata']['uid']}") for found in (job, *pods)]
    for line in description(job, pods, [event for part in parts for event in part], datetime.now(UTC)):
        say(line)


def logs(
    name: JobArgument,
    follow: Follow = False,
    tail: Annotated[int, typer.Option(min=-1, help="Lines from the end; -1 for all.")] = -1,
    namespace: NamespaceOption = None,
    context: Context = None,
) -> None:
    """Show the log of a job's run: that of its driver while it runs, else the logs in its run folder."""
    from turnmill.cli.cluster.api import JOBS, Cluster
    from turnmill.cli.cluster.pods import head_of
    from turnmill.cli.cluster.run_logs import show_driver_log, show_folder_logs

    cluster = Cluster.connect(context, namespace)
    job = cluster.get(JOBS, name)
    if follow:
        job = _wait(cluster, name, lambda found: _has_run(found) and (_has_ended(found) or head_of(cluster, found)))
    head = head_of(cluster, job)
    if head is not None:
        show_driver_log(cluster, head, follow=follow, tail=tail)
    elif _has_run(job):
        show_folder_logs(cluster, job, tail=tail)
    else:
        raise SettingsError(f"{name} has not run yet: {_line(job)} Wait for its run with `turnmill logs {name} -f`.")
    if follow:
        say(_line(cluster.get(JOBS, name)), to=errors())


def stop(names: JobArguments, namespace: NamespaceOption = None, context: Context = None) -> None:
    """Suspend jobs: they give back their devices, and can be resumed from their last checkpoints."""
    _suspend(names, True, namespace, context)


def resume(names: JobArguments, namespace: NamespaceOption = None, context: Context = None) -> None:
    """Resume suspended jobs from their last checkpoints."""
    _suspend(names, False, namespace, context)


def delete(names: JobArguments, wait: Wait = True, namespace: NamespaceOption = None, context: Context = None) -> None:
    """Delete jobs and what belongs to them, but for their run folders."""
    from turnmill.cli.cluster.api import JOBS, Cluster

    cluster = Cluster.connect(context, namespace)
    uids = {name: cluster.get(JOBS, name)["metadata"]["uid"] for name in names}
    for name in names:
        cluster.delete(JOBS, name)
    for name in names:
        if wait:
            _wait_until_gone(cluster, name, uids[name])
        say(f'{KIND_NAME} "{name}" deleted')


def fetch(
    name: JobArgument,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="Where to put it; by default runs/ and the run's name.", show_default=False
        ),
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="With its checkpoints, which are large.")] = False,
    namespace: NamespaceOption = None,
    context: Context = None,
) -> None:
    """Copy a job's run folder to this machine."""
    from turnmill.cli.cluster.api import JOBS, Cluster
    from turnmill.cli.cluster.job_text import run_folder
    from turnmill.cli.cluster.run_logs import fetch_run
    from turnmill.cli.run_dirs import RUNS

    cluster = Cluster.connect(context, namespace)
    job = cluster.get(JOBS, name)
    folder = target or RUNS / Path(run_folder(job)).name
    count = fetch_run(cluster, job, folder, exclude=[] if checkpoints else ["checkpoints"])
    say(f"{count} files are in {folder}. Show them with:\n  turnmill report {folder}\n  turnmill view {folder}")


def _suspend(names: list[str], suspend: bool, namespace: str | None, context: str | None) -> None:
    from turnmill.cli.cluster.api import JOBS, Cluster
    from turnmill.cli.cluster.job_text import is_suspended, is_true

    cluster = Cluster.connect(context, namespace)
    for name in names:
        job = cluster.get(JOBS, name)
        if is_true(job, "Complete") or is_true(job, "Failed"):
            more = " Raise spec.retries to carry on." if is_true(job, "Failed") else ""
            raise SettingsError(f"{name} has ended: {_line(job)}{more}")
        done = "suspended" if suspend else "resumed"
        if is_suspended(job) == suspend:
            say(f"{KIND_NAME}/{name} unchanged")
            continue
        cluster.patch(JOBS, name, {"spec": {"suspend": suspend}})
        say(f"{KIND_NAME}/{name} {done}")


def _print(found: "Sequence[Resource]", output: Output, *, single: bool) -> None:
    from turnmill.cli.cluster.job_text import dump

    typer.echo(dump(found, output, single=single))


def _line(job: "Resource") -> str:
    from turnmill.cli.cluster.job_text import progress_line

    return progress_line(job)


def _has_run(job: "Resource") -> bool:
    return bool((job.get("status") or {}).get("attempt"))


def _has_ended(job: "Resource") -> bool:
    from turnmill.cli.cluster.job_text import is_true

    return is_true(job, "Complete") or is_true(job, "Failed")


def _watch(cluster: "Cluster", name: str) -> None:
    """Show a job's progress until it ends; the exit code is 1 if it failed. Ctrl-C ends the view, not the job."""
    from turnmill.cli.cluster.job_text import is_true

    try:
        job = _wait(cluster, name, _has_ended)
    except KeyboardInterrupt:
        way_back = f"Watch it again with `turnmill jobs {name} --watch`, or stop it with `turnmill stop {name}`."
        say(f"{name} goes on in the cluster. {way_back}", to=errors())
        raise typer.Exit(INTERRUPTED) from None
    if is_true(job, "Failed"):
        raise typer.Exit(FAILED)


def _wait(cluster: "Cluster", name: str, is_over: "Callable[[Resource], object]") -> "Resource":
    """Return the job once `is_over` says so; every change of its state is shown before.

    Raises ClusterError if the API server refuses, or does not answer for OUTAGE_SECONDS.
    """
    from turnmill.cli.cluster.api import JOBS, ClusterError

    shown, answered_at = "", time.monotonic()
    while True:
        job = None
        try:
            job = cluster.get(JOBS, name)
            line, answered_at = _line(job), time.monotonic()
        except ClusterError as error:
            if not error.passes or time.monotonic() - answered_at > OUTAGE_SECONDS:
                raise
            line = f"{error} Trying again."
        if line != shown:
            say(f"{datetime.now():%H:%M:%S} {line}", to=errors())
            shown = line
        if job is not None and is_over(job):
            return job
        time.sleep(POLL_SECONDS)


def _wait_until_gone(cluster: "Cluster", name: str, uid: str) -> None:
    from turnmill.cli.cluster.api import JOBS, ClusterError

    deadline = time.monotonic() + DELETE_SECONDS
    while time.monotonic() < deadline:
        try:
            if cluster.get(JOBS, name)["metadata"]["uid"] != uid:
                return
        except ClusterError as error:
            if error.code == 404:
                return
            raise
        time.sleep(POLL_SECONDS / 4)
    raise ClusterError(
        f"{name} is still being deleted after {DELETE_SECONDS:g} s. If the operator is gone for good, remove the job's "
        "finalizers."
    )


COMMANDS: tuple[Callable[..., None], ...] = (submit, jobs, describe, logs, stop, resume, delete, fetch)
