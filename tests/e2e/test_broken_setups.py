"""What `kubectl describe` says of jobs in set-ups that somebody broke: the cause, and the way out."""

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import charts
from support.charts import helm, options
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.operator_process import operator_process
from support.ray_jobs import raw_team
from support.team_jobs import Team, install_definition, operated_team
from support.team_release import CPU_VALUES, RELEASE, TOOL_SERVER, host_paths

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

EXAMPLE, TOOLS = "babyai-goto-cpu.yaml", "tool-arithmetic-cpu.yaml"
KUEUE = "kueue.x-k8s.io/v1beta2"
TABLE = os.environ.get("BROKEN_SETUPS")
"""A file to which each message is appended as a row of a table."""

GROUP = {
    "device": "cpu", "purpose": "train", "gpusPerNode": 1, "minReplicas": 0, "maxReplicas": 1, "image": "",
    "sharedMemory": "1Gi",
    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
    "gpuProducts": [], "tolerations": [], "nodeSelector": {}, "rayStartParams": {},
}  # fmt: skip
GROUPS = {
    "trainer.groups.no-image": {**GROUP, "accelerator": "B100", "image": "turnmill/nowhere:0"},
    "trainer.groups.no-gpus": {**GROUP, "accelerator": "B200", "device": "cuda"},
}


@pytest.fixture(scope="module")
def broken(prefix: str) -> Iterator[Team]:
    """A team whose groups have an image that nobody has, and GPUs that no node has."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with temporary_namespace(prefix, labels=labels) as namespace, operated_team(namespace, GROUPS) as team:
        yield team


def describe(namespace: Namespace, name: str) -> str:
    return " ".join(namespace.kubectl("describe", "atj", name).split())


def require(namespace: Namespace, name: str, broken: str, *parts: str, seconds: float = 120) -> None:
    """Wait until the description of a job has these words in one of its conditions."""

    def message() -> str | None:
        resource = namespace.get("atj", name) or {}
        found = [condition["message"] for condition in resource.get("status", {}).get("conditions", ())]
        return next((message for message in found if all(part in message for part in parts)), None)

    said = wait_for(f"{parts} in the status of {name}", message, seconds=seconds)
    assert " ".join(said.split()) in describe(namespace, name)
    if TABLE:
        with Path(TABLE).open("a") as file:
            file.write(f"| {broken} | {said.replace('|', chr(92) + '|')} |\n")


def upgrade(team: Team, **values: Any) -> None:
    """Upgrade the release to further values, without waiting for anything."""
    own = {"networkPolicy": {"operatorNamespace": team.namespace.name}, **GROUPS, **values}
    helm("upgrade", RELEASE, str(charts.TEAM), f"--namespace={team.namespace.name}", *options(own, [CPU_VALUES]))


def test_no_such_queue_and_no_quota(broken):
    namespace = broken.namespace
    if namespace.try_kubectl("get", "crd", "clusterqueues.kueue.x-k8s.io").returncode:
        pytest.skip("no Kueue in the cluster")
    name = namespace.name
    quotas = {"cpu": "50m", "memory": "64Gi", "ephemeral-storage": "64Gi"}
    resources = [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()]
    flavor = {"coveredResources": list(quotas), "flavors": [{"name": name, "resources": resources}]}
    matching = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}, "resourceGroups": [flavor]}
    queue = {"metadata": {"name": "small"}, "spec": {"clusterQueue": name}}
    namespace.apply(
        {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": matching},
        {"apiVersion": KUEUE, "kind": "LocalQueue", **queue},
    )
    try:
        broken.submit(EXAMPLE, "no-queue", queue="nowhere")
        broken.submit(EXAMPLE, "no-quota", queue="small")

        require(namespace, "no-queue", "no such queue", "LocalQueue nowhere doesn't exist", "kubectl describe workload")
        require(namespace, "no-quota", "quota", "quota for cpu", "kubectl describe workload")
    finally:
        namespace.kubectl("delete", "atj,localqueues", "--all", "--timeout=60s", timeout=70)
        for kind in ("clusterqueue", "resourceflavor"):
            namespace.kubectl("delete", kind, name, "--timeout=60s")


def test_no_such_image(broken):
    broken.submit(EXAMPLE, "no-image", resources__train={"accelerator": "B100"})

    require(broken.namespace, "no-image", "no such image", "turnmill/nowhere:0", "kubectl describe pod")
    broken.namespace.delete("atj", "no-image")


def test_no_such_gpu(broken):
    broken.submit(EXAMPLE, "no-gpu", resources__train={"accelerator": "GB300"})
    broken.submit(EXAMPLE, "no-free-gpu", resources={"device": "auto", "train": {"accelerator": "B200"}})

    require(broken.namespace, "no-gpu", "no such GPU", "GB300", "H100")
    require(broken.namespace, "no-free-gpu", "no such GPU on a node", "Insufficient nvidia.com/gpu", "kubectl describe")
    broken.namespace.delete("atj", "no-gpu")
    broken.namespace.delete("atj", "no-free-gpu")


def test_no_such_claim(broken):
    upgrade(broken, **{"storage.models.enabled": True, "storage.models.existingClaim": "nowhere"})
    try:
        broken.submit(EXAMPLE, "no-claim")

        require(broken.namespace, "no-claim", "no such claim", 'persistentvolumeclaim "nowhere" not found', "kubectl")
    finally:
        broken.namespace.delete("atj", "no-claim")
        upgrade(broken)


def test_a_volume_that_the_pods_must_not_write_to(broken):
    (folder,) = host_paths(broken.namespace, f"{RELEASE}-runs")
    folder.chmod(0o755)
    try:
        broken.submit(EXAMPLE, "read-only", retries=0)

        require(broken.namespace, "read-only", "unwritable volume", "/runs", "write", seconds=300)
    finally:
        folder.chmod(0o777)
        broken.namespace.delete("atj", "read-only")


def test_no_such_model(broken):
    broken.submit(EXAMPLE, "no-model", model={"path": "/runs/models/nothing"})

    require(broken.namespace, "no-model", "no model", "/runs/models/nothing", seconds=300)
    broken.namespace.delete("atj", "no-model")


def test_a_token_that_the_tool_servers_do_not_take(broken):
    secret = broken.namespace.get("secret", TOOL_SERVER) or {}
    right = secret["data"]["token"]

    def set_token(token: str) -> None:
        broken.namespace.kubectl(
            "patch", "secret", TOOL_SERVER, "--type=merge", f"--patch={json.dumps({'data': {'token': token}})}"
        )

    set_token(base64.b64encode(b"another-teams-token-of-thirty-two-bytes").decode())
    try:
        broken.submit(TOOLS, "wrong-token")

        require(broken.namespace, "wrong-token", "wrong token", "refuses the run (401)", "restart", seconds=300)
    finally:
        set_token(right)
        broken.namespace.delete("atj", "wrong-token")


def test_no_team(prefix, tmp_path):
    with temporary_namespace(prefix) as namespace:
        install_definition(namespace)
        with operator_process(namespace.name, tmp_path / "operator.log"):
            Team(namespace).submit(EXAMPLE, "no-team")

            require(namespace, "no-team", "no team", "Install the chart turnmill-team")


def test_kuberay_without_tokens(prefix, tmp_path):
    with temporary_namespace(prefix) as namespace:
        install_definition(namespace)
        team = raw_team()
        namespace.apply({**team, "metadata": {"name": team["metadata"]["name"]}})
        with old_kuberay(namespace), operator_process(namespace.name, tmp_path / "operator.log"):
            Team(namespace).submit(EXAMPLE, "old-kuberay")

            require(namespace, "old-kuberay", "old KubeRay", "no token", "Upgrade KubeRay", "1.5.1")


@contextmanager
def old_kuberay(namespace: Namespace) -> Iterator[None]:
    """Take from KubeRay's definitions what those before 1.5.1 do not have."""
    kinds = namespace.kubectl("get", "crd", "--output=name").split()
    names = [kind.partition("/")[2] for kind in kinds if kind.endswith(".ray.io")]
    before = {name: json.loads(namespace.kubectl("get", "crd", name, "--output=json")) for name in names}
    for resource in before.values():
        for field in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
            resource["metadata"].pop(field, None)
        resource.pop("status", None)
    try:
        for resource in before.values():
            namespace.kubectl("replace", "--filename=-", stdin=json.dumps(_without(resource, "authOptions")))
        time.sleep(2)
        yield
    finally:
        for resource in before.values():
            namespace.kubectl("replace", "--filename=-", stdin=json.dumps(resource))


def _without(node: Any, field: str) -> Any:
    if isinstance(node, dict):
        return {name: _without(value, field) for name, value in node.items() if name != field}
    return [_without(value, field) for value in node] if isinstance(node, list) else node
