"""A team's release on a cluster for tests, and calls to its tool servers from a pod."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.charts import TEAM, helm, options, try_helm
from support.kubernetes import Namespace, wait_for

RELEASE = "team"
CPU_VALUES = TEAM / "ci" / "cpu-values.yaml"
TOOL_SERVER, STORE = f"{RELEASE}-tool-server", f"{RELEASE}-store"
STORE_NODE = f"{STORE}-node"
"""Name of the pods of a store of several servers, without their number."""

TOOL_SERVER_PODS = "app.kubernetes.io/component=tool-server"
IMAGE = "turnmill/tool-server:0.1.0"
CALLER = Path(__file__).with_name("call_tool_servers.py")

READY_SECONDS, SECONDS_PER_REPLICA = 180.0, 90.0
SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics', timeout=10).read().decode())"


class TeamRelease:
    """A release of the team's chart in a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def install(self, values: dict[str, Any] | None = None) -> None:
        """Install the chart or upgrade to these values, and wait until everything is ready."""
        where = [RELEASE, str(TEAM), f"--namespace={self.namespace.name}"]
        helm("upgrade", "--install", *where, *options(values, [CPU_VALUES]))
        open_host_paths(self.namespace)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the store and all replicas are ready."""
        for kind, name in (("statefulset", STORE), ("statefulset", STORE_NODE), ("deployment", TOOL_SERVER)):
            if (found := self.namespace.get(kind, name)) is not None:
                # The pods of a StatefulSet are replaced one after the other.
                seconds = max(READY_SECONDS, SECONDS_PER_REPLICA * found["spec"]["replicas"])
                self.namespace.kubectl(
                    "rollout", "status", f"{kind}/{name}", f"--timeout={seconds:g}s", timeout=seconds + 10
                )

    def test(self) -> str:
        """Run `helm test` and return its output."""
        return helm("test", RELEASE, f"--namespace={self.namespace.name}", "--logs")

    def uninstall(self) -> None:
        """Uninstall the release, if it exists."""
        try_helm("uninstall", RELEASE, f"--namespace={self.namespace.name}", "--ignore-not-found", "--wait")

    def tool_server_pods(self) -> list[dict[str, Any]]:
        """Return the running replicas that are not being deleted."""
        return [
            pod
            for pod in self.namespace.list("pods", TOOL_SERVER_PODS)
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
        ]

    def num_ready(self) -> int:
        """Return the number of ready replicas."""
        deployment = self.namespace.get("deployment", TOOL_SERVER)
        ready: int = (deployment or {}).get("status", {}).get("readyReplicas", 0)
        return ready

    def calls_in_flight(self) -> dict[str, float]:
        """Return the calls in flight of each replica that answers, by the pod's name."""
        found = {}
        for replica in self.tool_server_pods():
            name = replica["metadata"]["name"]
            for line in scrape(self.namespace, name):
                if line.startswith("turnmill_tool_calls_in_flight "):
                    found[name] = float(line.rsplit(" ", 1)[1])
        return found


@contextmanager
def team_release(namespace: Namespace, values: dict[str, Any] | None = None) -> Iterator[TeamRelease]:
    """Install a release, and uninstall it at the end."""
    release = TeamRelease(namespace)
    try:
        release.install(values)
        yield release
    finally:
        release.uninstall()


def open_host_paths(namespace: Namespace) -> None:
    """Let pods without root write to volumes on host paths, if the node is this machine."""

    def bound() -> bool:
        volumes = {
            claim["metadata"]["name"]: claim["spec"].get("volumeName")
            for claim in namespace.list("persistentvolumeclaims")
        }
        return bool(volumes) and all(volumes.values()) and volumes.keys() >= _claims_of_stateful_sets(namespace)

    wait_for("volumes", bound, seconds=60)
    for path in host_paths(namespace):
        path.chmod(0o777)


def _claims_of_stateful_sets(namespace: Namespace) -> set[str]:
    return {
        f"{template['metadata']['name']}-{found['metadata']['name']}-{number}"
        for found in namespace.list("statefulsets")
        for template in found["spec"].get("volumeClaimTemplates", ())
        for number in range(found["spec"]["replicas"])
    }


def host_paths(namespace: Namespace, claim_name: str = "") -> list[Path]:
    """Return the folders of this machine that hold the volumes of a namespace, or of one claim."""
    folders = []
    for claim in namespace.list("persistentvolumeclaims"):
        if claim_name in ("", claim["metadata"]["name"]):
            volume = namespace.get("persistentvolume", claim["spec"]["volumeName"]) or {}
            path = Path(volume.get("spec", {}).get("hostPath", {}).get("path", ""))
            if path.parts and path.is_dir():
                folders.append(path)
    return folders


def pod(name: str, labels: dict[str, str], *command: str, image: str = IMAGE, **spec: Any) -> dict[str, Any]:
    """Return the manifest of a restricted pod that runs Python."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": list(command or ("sleep", "infinity")),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                }
            ],
            **spec,
        },
    }


def with_token(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a pod with the tool servers' token, as the chart's pods of runs have it."""
    source = {"secretKeyRef": {"name": TOOL_SERVER, "key": "token", "optional": True}}
    manifest["spec"]["containers"][0]["env"] = [{"name": "TURNMILL_TOOL_SERVER_TOKEN", "valueFrom": source}]
    return manifest


RAY_LABELS = {"ray.io/is-ray-node": "yes"}
"""Labels by which the chart's network policies select the pods of runs."""


class Caller:
    """Trajectories that call the tool servers, in a pod with the labels of a run's pods."""

    def __init__(self, namespace: Namespace, name: str = "caller") -> None:
        self.namespace = namespace
        self.name = name

    def start(self) -> None:
        """Start the pod and wait until it can reach the tool servers."""
        self.namespace.apply(with_token(pod(self.name, RAY_LABELS)))
        self.namespace.kubectl("wait", "--for=condition=Ready", f"pod/{self.name}", "--timeout=60s", timeout=70)
        self.wait_until_reachable(TOOL_SERVER)

    def wait_until_reachable(self, host: str) -> None:
        """Wait until network policies let the pod's calls through, which takes a moment after its start."""
        wait_for(
            f"connection to {host}", lambda: can_connect(self.namespace, self.name, host, 5000) or None, seconds=90
        )

    def begin(self, **options: Any) -> subprocess.Popen[str]:
        """Start the calls; `finish` returns their report."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return start_script(self.namespace, self.name, CALLER, *arguments)

    def finish(self, process: subprocess.Popen[str], *, seconds: float) -> dict[str, Any]:
        """Wait for the calls and return their report."""
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        assert process.returncode == 0, errors
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report


def assert_nothing_lost_or_repeated(report: dict[str, Any]) -> None:
    """Require that each call of a report took effect once, in its order."""
    assert report["calls"] > 0
    assert (report["lost"], report["repeated"], report["in_order"]) == (0, 0, True), report


def start_script(namespace: Namespace, pod_name: str, script: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a script of Python in a pod."""
    command = ["kubectl", "--namespace", namespace.name, "exec", "--stdin", pod_name, "--"]
    process = subprocess.Popen(
        [*command, "python", "-", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(script.read_text())
    process.stdin.close()
    process.stdin = None
    return process


def scrape(namespace: Namespace, pod_name: str) -> list[str]:
    """Return the lines of a pod's metrics; none if it does not answer."""
    return namespace.try_kubectl("exec", pod_name, "--", "python", "-c", SCRAPE).stdout.splitlines()


def can_connect(namespace: Namespace, pod_name: str, host: str, port: int) -> bool:
    """Return True if a pod can open a TCP connection."""
    code = f"import socket; socket.create_connection(({host!r}, {port}), timeout=3)"
    return namespace.try_kubectl("exec", pod_name, "--", "python", "-c", code).returncode == 0


def seconds_until(what: str, find: Any, *, seconds: float) -> float:
    """Wait for a condition and return how long it took."""
    begun = time.monotonic()
    wait_for(what, find, seconds=seconds)
    return time.monotonic() - begun
