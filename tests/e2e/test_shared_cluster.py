"""The team's shared Ray cluster: restricted like everything else, and as large as its work."""

import pytest

from turnmill.testing.kubernetes import Namespace, is_ready, wait_for
from turnmill.testing.programs import why_no_program
from turnmill.testing.team_release import team_release

SHARED = {"trainer.sharedCluster.enabled": True, "toolServer.enabled": False}
MISSING = why_no_program("helm")
TASK = """
import ray, socket
ray.init("auto", log_to_driver=False, logging_level="error")
where = ray.remote(num_cpus=0, resources={"accelerator_type:A40": 0.5})(lambda: socket.gethostname())
print(ray.get(where.remote(), timeout=240))
"""

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def ready_head(namespace: Namespace) -> str | None:
    for pod in namespace.list("pods", "ray.io/node-type=head"):
        if is_ready(pod):
            name: str = pod["metadata"]["name"]
            return name
    return None


def test_a_shared_cluster_grows_from_no_worker_by_the_accelerator_that_is_asked_for(namespace: Namespace):
    with team_release(namespace, SHARED):
        head = wait_for("ready head", lambda: ready_head(namespace), seconds=300)
        assert namespace.list("pods", "ray.io/node-type=worker") == []

        said = namespace.run_in(head, "python", "-c", TASK, container="ray", timeout=300)

        (worker,) = namespace.list("pods", "ray.io/node-type=worker")
        assert said.splitlines()[-1] == worker["metadata"]["name"]
        assert worker["metadata"]["labels"]["ray.io/group"] == "a40"
