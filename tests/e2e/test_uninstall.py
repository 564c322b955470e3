"""Both releases are uninstalled in every order while a job runs: nothing is left but the claims that are kept."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from support.charts import helm
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.operator_process import operator_process
from support.programs import why_no_program
from support.team_jobs import (
    READER,
    RELEASE_OF_OPERATOR,
    SubmittedJob,
    Team,
    install_definition,
    operated_team,
)
from support.team_release import RELEASE, team_release

MISSING = why_no_program("helm")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(MISSING is not None, reason=MISSING or ""),
]

RUN_SECONDS, END_SECONDS = 420, 180
KINDS = (
    "agenttrainingjobs", "rayjobs.ray.io", "rayclusters.ray.io", "pods", "jobs", "deployments", "statefulsets",
    "services", "serviceaccounts", "roles", "rolebindings", "networkpolicies", "configmaps", "secrets",
    "horizontalpodautoscalers", "poddisruptionbudgets", "resourcequotas", "leases",
)  # fmt: skip
KEPT = {f"{RELEASE}-runs", f"{RELEASE}-models"}
"""Claims with checkpoints and models."""


def uninstall(release: str) -> Callable[[Team, SubmittedJob], None]:
    def step(team: Team, job: SubmittedJob) -> None:
        # Its claim is the test's, not the release's.
        team.namespace.delete("pod", READER)
        helm("uninstall", release, f"--namespace={team.namespace.name}")

    return step


def delete_job(team: Team, job: SubmittedJob) -> None:
    team.namespace.kubectl("delete", "agenttrainingjob", job.name, "--timeout=120s", timeout=130)


TEAM, OPERATOR = uninstall(RELEASE), uninstall(RELEASE_OF_OPERATOR)
ORDERS: Mapping[str, tuple[Callable[[Team, SubmittedJob], None], ...]] = {
    "job, team, operator": (delete_job, TEAM, OPERATOR),
    "team, job, operator": (TEAM, delete_job, OPERATOR),
    "operator, job, team": (OPERATOR, delete_job, TEAM),
    "team, operator, job": (TEAM, OPERATOR, delete_job),
    "operator, team, job": (OPERATOR, TEAM, delete_job),
    "job, operator, team": (delete_job, OPERATOR, TEAM),
}


def running_job(team: Team) -> SubmittedJob:
    job = team.submit("tool-arithmetic-cpu.yaml", "job", training__validation={"episodes": 0})
    wait_for("a running job", lambda: job.resource.get("status", {}).get("state") == "Running", seconds=RUN_SECONDS)
    return job


def left(namespace: Namespace) -> set[str]:
    """Return all objects but those that every namespace has, and events."""
    found = {
        f"{item['kind']}/{item['metadata']['name']}"
        for kind in KINDS
        for item in namespace.list(kind)
        if item["metadata"]["name"] not in ("default", "kube-root-ca.crt")
    }
    claims = {item["metadata"]["name"] for item in namespace.list("persistentvolumeclaims")}
    return found | {f"PersistentVolumeClaim/{name}" for name in claims - KEPT}


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_left_whatever_goes_first(prefix: str, order: str):
    # The values for tests would delete the claim of runs, and helm would wait for the pods that use it.
    values = {"storage.runs.keep": True}
    with temporary_namespace(prefix) as namespace, operated_team(namespace, values) as team:
        job = running_job(team)

        for step in ORDERS[order]:
            step(team, job)

        with suppress(AssertionError):
            wait_for("end of all objects", lambda: not left(namespace), seconds=END_SECONDS)
        assert left(namespace) == set()


def test_a_namespace_that_is_deleted_with_its_release_and_a_job_goes(prefix: str, tmp_path: Path):
    # The operator serves it from elsewhere: one within it would lose its rights before it could let go of the job.
    with temporary_namespace(prefix) as namespace, team_release(namespace):
        install_definition(namespace)
        with operator_process(namespace.name, tmp_path / "operator.log"):
            running_job(Team(namespace))

            namespace.kubectl("delete", "namespace", namespace.name, "--timeout=300s", timeout=310)
        # What tests clean up is gone already.
        namespace.kubectl("create", "namespace", namespace.name)
