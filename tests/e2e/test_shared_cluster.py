"""The team's shared Ray cluster: its pods are restricted, and it scales with its work."""

from typing import Any

import pytest

from support.kubernetes import Namespace, is_ready, wait_for
from support.programs import why_no_program
from support.team_release import RELEASE, team_release

SHARED = {"trainer.sharedCluster.enabled": True, "toolServer.enabled": False}
MISSING = why_no_program("helm")
CONNECT = """
import ray, socket
ray.init("auto", namespace="test", log_to_driver=False, logging_level="error")
"""
BEGIN = f"""{CONNECT}
@ray.remote(num_cpus=0, resources={{"accelerator_type:A40": 0.5}})
class Work:
    def where(self):
        return socket.gethostname()
work = Work.options(name="work", lifetime="detached").remote()
print(ray.get(work.where.remote(), timeout=240))
"""
LOOK = f"""{CONNECT}
print(ray.get(ray.get_actor("work").where.remote(), timeout=60))
"""

HAS_TOKEN = "import os; print(os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount/token'))"

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def ready_head(namespace: Namespace) -> str | None:
    for pod in namespace.list("pods", "ray.io/node-type=head"):
        if is_ready(pod):
            name: str = pod["metadata"]["name"]
            return name
    return None


def run_on(head: str, namespace: Namespace, code: str) -> str:
    """Run Python code on the head and return the last line of its output."""
    return namespace.run_in(head, "python", "-c", code, container="ray", timeout=300).splitlines()[-1]


def shared_spec(namespace: Namespace) -> dict[str, Any]:
    cluster = namespace.get("raycluster", f"{RELEASE}-ray")
    assert cluster is not None
    spec: dict[str, Any] = cluster["spec"]
    return spec


@pytest.mark.nightly
def test_a_shared_cluster_scales_up_the_requested_accelerator_and_survives_an_upgrade(
    namespace: Namespace,
):
    with team_release(namespace, SHARED) as release:
        head = wait_for("ready head", lambda: ready_head(namespace), seconds=300)
        assert namespace.list("pods", "ray.io/node-type=worker") == []
        for container, has_token in (("ray", "False"), ("autoscaler", "True")):
            found = namespace.run_in(head, "python", "-c", HAS_TOKEN, container=container, timeout=60)
            assert found.split() == [has_token], container

        where = run_on(head, namespace, BEGIN)

        (worker,) = namespace.list("pods", "ray.io/node-type=worker")
        assert where == worker["metadata"]["name"]
        assert worker["metadata"]["labels"]["ray.io/group"] == "a40"
        scaled = shared_spec(namespace)
        assert sum(group["replicas"] for group in scaled["workerGroupSpecs"]) == 1

        release.install(SHARED | {"trainer.temporarySize": "3Gi"})

        assert shared_spec(namespace) == scaled
        assert run_on(head, namespace, LOOK) == where
        (same,) = namespace.list("pods", "ray.io/node-type=worker")
        assert same["metadata"]["uid"] == worker["metadata"]["uid"]
