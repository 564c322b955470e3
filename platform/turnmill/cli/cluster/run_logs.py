"""Logs and run folders of jobs, read in their pods."""

from pathlib import Path

from turnmill.cli.cluster.api import Cluster, ClusterError
from turnmill.cli.cluster.job_text import run_folder
from turnmill.cli.cluster.pods import Container, head_of, reader
from turnmill.cli.cluster.resource import Resource
from turnmill.cli.cluster.streams import show, unpack
from turnmill.cli.run_dirs import is_run
from turnmill.core.errors import SettingsError

# The newest driver of the head's session: a shared cluster has one of every job that it served.
DRIVER_LOG = "$(ls -t /tmp/ray/session_latest/logs/job-driver-*.log 2>/dev/null | head -n 1)"
IDLE = ["sleep", "infinity"]


def show_driver_log(cluster: Cluster, head: Container, *, follow: bool, tail: int) -> None:
    """Show what the run's driver prints, until it ends with `follow`."""
    options = ["--lines=+1" if tail < 0 else f"--lines={tail}", *(["--follow=name", "--retry"] if follow else [])]
    wait = f'until [ -n "{DRIVER_LOG}" ]; do sleep 1; done; ' if follow else ""
    command = f'{wait}file="{DRIVER_LOG}"; [ -z "$file" ] || exec tail {" ".join(options)} "$file"'
    show(cluster, head, ["sh", "-c", command])


def show_folder_logs(cluster: Cluster, job: Resource, *, tail: int) -> None:
    """Show the logs in the run folder of a job, which has no pods any more."""
    lines = "+1" if tail < 0 else str(tail)
    folder = f"{run_folder(job)}/logs"
    command = f'cd "{folder}" && for file in *.log; do echo "==> $file <=="; tail --lines={lines} "$file"; done'
    with reader(cluster, job, IDLE) as pod:
        show(cluster, pod, ["sh", "-c", command])


def fetch_run(cluster: Cluster, job: Resource, folder: Path, *, exclude: list[str]) -> int:
    """Copy the run folder of a job into a folder here; return the number of files."""
    if folder.exists() and not is_run(folder) and any(folder.iterdir()):
        raise SettingsError(f"{folder} is not empty, and holds no run. Name another folder.")
    source = run_folder(job)
    head = head_of(cluster, job)
    if head is not None:
        return unpack(cluster, head, source, folder, exclude)
    with reader(cluster, job, IDLE) as pod:
        count = unpack(cluster, pod, source, folder, exclude)
    if not count:
        raise ClusterError(f"{source} is empty: the run has written nothing yet.")
    return count
