"""`helm test` measures the network between pods of a worker group."""

import pytest

from support.charts import helm
from support.kubernetes import temporary_namespace
from support.programs import why_no_program
from support.team_release import RELEASE, team_release

MISSING = why_no_program("helm")
TEST = f"{RELEASE}-test-links"

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(MISSING is not None, reason=MISSING or "")]


def test_two_pods_measure_the_links_between_them(prefix: str):
    values = {"trainer.linkTest.pods": 2, "toolServer.autoscaling.enabled": False, "toolServer.replicas": 1}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with temporary_namespace(prefix, labels=labels) as namespace, team_release(namespace, values):
        helm("test", RELEASE, f"--namespace={namespace.name}", f"--filter=name={TEST}", "--timeout=5m", timeout=330)

        logs = [
            namespace.logs(pod["metadata"]["name"])
            for pod in namespace.list("pods", "app.kubernetes.io/component=test-links")
        ]
        assert len(logs) == 2
        assert all("gloo, 2 machines of 1 rank: sums " in " ".join(log.split()) for log in logs), logs
