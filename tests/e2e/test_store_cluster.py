"""A team's release whose store is a cluster of three primaries with a replica each."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.programs import why_no_program
from support.team_release import (
    STORE_NODE,
    TOOL_SERVER,
    Caller,
    TeamRelease,
    assert_nothing_lost_or_repeated,
    team_release,
)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(why_no_program("helm") is not None, reason=why_no_program("helm") or ""),
]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
URL = f"http://{TOOL_SERVER}:5000"
VALUES = {
    "store.cluster.primaries": 3,
    "store.cpu": "20m",
    "store.maxMemoryMiB": 64,
    "toolServer.autoscaling.enabled": False,
    "toolServer.replicas": 2,
}
SERVERS = 6
HALF = {"master": 3, "slave": 3}
ROLE = "REDISCLI_AUTH=$(cat /etc/store-password/password) redis-cli ROLE | head -n 1"


@pytest.fixture(scope="module")
def release(prefix: str) -> Iterator[TeamRelease]:
    with temporary_namespace(prefix, labels=RESTRICTED) as namespace, team_release(namespace, VALUES) as installed:
        yield installed


@pytest.fixture(scope="module")
def caller(release: TeamRelease) -> Caller:
    started = Caller(release.namespace)
    started.start()
    return started


def pod_name(number: int) -> str:
    return f"{STORE_NODE}-{number}"


def role(namespace: Namespace, number: int) -> str:
    """Return what a server is in its cluster; empty if it does not answer."""
    return namespace.try_kubectl("exec", pod_name(number), "--container=store", "--", "sh", "-c", ROLE).stdout.strip()


def a_primary(namespace: Namespace) -> int:
    return next(number for number in range(SERVERS) if role(namespace, number) == "master")


def wait_until_whole(release: TeamRelease) -> None:
    """Wait until all servers are ready, half of them as replicas."""

    def found() -> bool | None:
        return Counter(role(release.namespace, number) for number in range(SERVERS)) == HALF or None

    release.wait_until_ready()
    wait_for("three primaries with a replica each", found, seconds=120)


def calls_during(release: TeamRelease, caller: Caller, seconds: float, act: Callable[[], object]) -> dict[str, object]:
    """Do something while trajectories call tools; return the report of the calls."""
    calls = caller.begin(url=URL, trajectories=8, seconds=seconds, sleep=0.2)
    wait_for("calls", lambda: sum(release.calls_in_flight().values()) or None, seconds=60)
    act()
    return caller.finish(calls, seconds=seconds + 180)


def evict(namespace: Namespace, number: int) -> subprocess.CompletedProcess[str]:
    """Evict a pod as a drain of its node does."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod_name(number), "namespace": namespace.name},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod_name(number)}/eviction"
    return namespace.try_kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def test_a_release_forms_a_cluster_that_serves_its_tool_servers(release: TeamRelease):
    wait_until_whole(release)

    assert "has 1 entries" in release.test()


def test_calls_go_on_while_a_primarys_pod_is_deleted(release: TeamRelease, caller: Caller):
    wait_until_whole(release)
    primary = pod_name(a_primary(release.namespace))

    report = calls_during(
        release, caller, 40, lambda: release.namespace.kubectl("delete", "pod", primary, "--wait=false")
    )

    assert_nothing_lost_or_repeated(report)
    wait_until_whole(release)


def test_a_replica_takes_over_from_a_primary_that_is_killed(release: TeamRelease, caller: Caller):
    wait_until_whole(release)
    number = a_primary(release.namespace)
    before = role(release.namespace, number)

    report = calls_during(
        release,
        caller,
        60,
        lambda: release.namespace.kubectl("delete", "pod", pod_name(number), "--grace-period=0", "--force"),
    )

    assert before == "master"
    assert_nothing_lost_or_repeated(report)
    wait_until_whole(release)


def test_of_two_evicted_servers_the_second_stays_until_the_first_is_back(release: TeamRelease, caller: Caller):
    wait_until_whole(release)
    namespace = release.namespace
    refused: list[bool] = []

    def drain() -> None:
        for number in (0, 1):
            deadline = time.monotonic() + 240
            while (answer := evict(namespace, number)).returncode and time.monotonic() < deadline:
                assert "disruption budget" in answer.stderr, answer.stderr
                refused.append(True)
                time.sleep(2)
            assert answer.returncode == 0, answer.stderr

    report = calls_during(release, caller, 90, drain)

    assert refused
    assert_nothing_lost_or_repeated(report)
    wait_until_whole(release)


def test_an_upgrade_that_restarts_each_server_during_calls_loses_none(release: TeamRelease, caller: Caller):
    wait_until_whole(release)
    before = {pod["metadata"]["uid"] for pod in release.namespace.list("pods", "app.kubernetes.io/component=store")}

    report = calls_during(release, caller, 240, lambda: release.install({**VALUES, "store.maxMemoryMiB": 80}))

    after = {pod["metadata"]["uid"] for pod in release.namespace.list("pods", "app.kubernetes.io/component=store")}
    assert len(before) == SERVERS
    assert before.isdisjoint(after)
    assert_nothing_lost_or_repeated(report)
    wait_until_whole(release)
