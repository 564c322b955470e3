"""Two jobs that each hold a part of what the other lacks: the younger one gives way, and both complete."""

import json
import time
from collections.abc import Iterator

import pytest

from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.team_jobs import SubmittedJob, Team, operated_team

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
LEARNER, ENGINE = "turnmill.test/learner", "turnmill.test/engine"
"""Devices of which the node has one each, as many as one job needs."""

RUN_SECONDS = 1200.0


class Node:
    """The node of the cluster, whose devices the test counts."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._name = namespace.kubectl("get", "nodes", "--output=jsonpath={.items[0].metadata.name}")

    def set_devices(self, **numbers: str | None) -> None:
        """Set the number of devices by their names after the slash; None removes them."""
        capacity = {f"turnmill.test/{name}": number for name, number in numbers.items()}
        patch = json.dumps({"status": {"capacity": capacity, "allocatable": capacity}})
        self._namespace.kubectl("patch", "node", self._name, "--subresource=status", "--type=merge", f"--patch={patch}")


@pytest.fixture(scope="module")
def gang_team(prefix: str) -> Iterator[Team]:
    def resources(device: str) -> dict[str, object]:
        return {
            "requests": {"cpu": "100m", "memory": "1Gi", "ephemeral-storage": "64Mi", device: 1},
            "limits": {"memory": "8Gi", "ephemeral-storage": "5Gi", device: 1},
        }

    values = {
        "trainer.groups.h100.resources": resources(LEARNER),
        "trainer.groups.a40.resources": resources(ENGINE),
    }
    with (
        temporary_namespace(prefix, labels=RESTRICTED) as fresh,
        operated_team(fresh, values, operator={"gangTimeoutSeconds": 20}) as team,
    ):
        yield team


@pytest.fixture(scope="module")
def node(gang_team: Team) -> Iterator[Node]:
    found = Node(gang_team.namespace)
    yield found
    found.set_devices(learner=None, engine=None)


def submit(team: Team, name: str) -> SubmittedJob:
    validation = {"episodes": 0}
    return team.submit("babyai-goto-separate-cpu.yaml", name, training__steps=6, training__validation=validation)


def pods_with(team: Team, job: SubmittedJob, device: str) -> list[tuple[str, bool]]:
    """Return the job's pods that ask for a device, and whether they have a node."""
    return [
        (pod["metadata"]["name"], bool(pod["spec"].get("nodeName")))
        for pod in team.namespace.list("pods", job.labels)
        if "deletionTimestamp" not in pod["metadata"]
        and any(device in (c["resources"].get("limits") or {}) for c in pod["spec"]["containers"])
    ]


def wait_for_pod(team: Team, job: SubmittedJob, device: str, *, placed: bool) -> str:
    def found() -> str | None:
        return next((name for name, has_node in pods_with(team, job, device) if has_node == placed), None)

    return wait_for(f"pod of {job.name} with {device}", found, seconds=120)


def test_two_jobs_that_block_each_other_both_complete(gang_team: Team, node: Node):
    node.set_devices(learner="1", engine="1")
    begun = time.monotonic()
    submit(gang_team, "alone").wait_until_complete(seconds=RUN_SECONDS)
    alone = time.monotonic() - begun
    wait_for("end of its pods", lambda: not gang_team.namespace.list("pods", "turnmill.dev/job=alone"), seconds=120)

    node.set_devices(learner="1", engine="0")
    begun = time.monotonic()
    older = submit(gang_team, "older")
    wait_for_pod(gang_team, older, LEARNER, placed=True)
    younger = submit(gang_team, "younger")
    wait_for_pod(gang_team, younger, ENGINE, placed=False)
    # Of pods that wait, the one that has waited longest gets a device first: here, the younger job's.
    gang_team.namespace.delete("pod", wait_for_pod(gang_team, older, ENGINE, placed=False))
    wait_for_pod(gang_team, older, ENGINE, placed=False)
    node.set_devices(learner="1", engine="1")
    wait_for_pod(gang_team, younger, ENGINE, placed=True)

    older.wait_until_complete(seconds=RUN_SECONDS)
    younger.wait_until_complete(seconds=RUN_SECONDS)
    together = time.monotonic() - begun

    assert older.resource["status"]["attempt"] == 1
    assert younger.resource["status"]["attempt"] == 2
    assert not younger.resource["status"].get("failedAttempts")
    print(f"alone {alone:.0f} s, two at once {together:.0f} s: {together / (2 * alone):.2f} times one after the other")
