"""The trajectory page of a run in the cluster, at a port of this machine."""

import time

from turnmill.cli.cluster.api import JOBS, Cluster, ClusterError
from turnmill.cli.cluster.job_text import run_folder
from turnmill.cli.cluster.pods import reader
from turnmill.cli.cluster.port_forward import forwarded_port
from turnmill.cli.console import errors, say

POD_PORT = 8600
ANSWER_SECONDS, POLL_SECONDS = 60.0, 0.5
REQUEST = b"GET /revision HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


def view_in_cluster(name: str, *, host: str, port: int, namespace: str | None, context: str | None) -> None:
    """Serve the trajectory page of a job's run until Ctrl-C: a pod beside the run folder, and a forwarded port."""
    cluster = Cluster.connect(context, namespace)
    job = cluster.get(JOBS, name)
    # Only the pod itself reaches the page, and who may forward its ports.
    command = ["turnmill", "view", run_folder(job), "--port", str(POD_PORT)]
    try:
        say(f"Starting a pod that reads {run_folder(job)}", to=errors())
        with (
            reader(cluster, job, command) as pod,
            forwarded_port(cluster, pod.pod, POD_PORT, host=host, local_port=port) as local,
        ):
            _wait_for_page(cluster, pod.pod)
            say(f"Trajectories: http://{host}:{local} (stop with Ctrl-C)")
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return


def _wait_for_page(cluster: Cluster, pod: str) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        try:
            connection = cluster.forward(pod, POD_PORT)
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(REQUEST)
            if connection.recv(16).startswith(b"HTTP/"):
                return
        except (ClusterError, OSError):
            pass
        time.sleep(POLL_SECONDS)
    raise ClusterError(f"The trajectory page in pod {pod} did not answer within {ANSWER_SECONDS:g} s.")
