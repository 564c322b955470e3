"""A team's release on a real cluster: tool servers under bursts, drains and upgrades, and network policies."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.charts import try_helm
from support.kubernetes import temporary_namespace, wait_for
from support.programs import why_no_program
from support.prometheus import prometheus_of_cluster
from support.team_release import (
    RAY_LABELS,
    RELEASE,
    STORE,
    TOOL_SERVER,
    Caller,
    TeamRelease,
    assert_nothing_lost_or_repeated,
    can_connect,
    host_paths,
    pod,
    team_release,
)

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
URL = f"http://{TOOL_SERVER}:5000"
ASK = """
import httpx
body = {{"trajectory_ids": ["t"], "actions": ["<python>print(1)</python>"]}}
print(httpx.post("{url}/get_observation", json=body, headers={headers!r}).status_code)
"""

pytestmark = pytest.mark.skipif(why_no_program("helm") is not None, reason=why_no_program("helm") or "")


@pytest.fixture(scope="module")
def release(prefix: str) -> Iterator[TeamRelease]:
    """One release for all tests; each leaves it as it found it."""
    with temporary_namespace(prefix, labels=RESTRICTED) as namespace, team_release(namespace) as installed:
        yield installed


@pytest.fixture(scope="module")
def caller(release: TeamRelease) -> Caller:
    started = Caller(release.namespace)
    started.start()
    return started


def test_helm_test_makes_a_call_reads_its_record_and_scrapes_a_metric(release: TeamRelease):
    output = release.test()

    assert "was answered with" in output
    assert "has 1 entries" in output
    assert "the call is counted" in output
    assert f"/runs (claim {RELEASE}-runs) is writable by user 10001" in output


def test_helm_test_names_user_and_claim_if_runs_may_not_write_to_their_volume(release: TeamRelease):
    (folder,) = host_paths(release.namespace, f"{RELEASE}-runs")
    folder.chmod(0o755)
    try:
        tested = try_helm("test", RELEASE, f"--namespace={release.namespace.name}", "--logs")
    finally:
        folder.chmod(0o777)
        # Helm keeps the pod of a failed test for its log, and with it the claim.
        release.namespace.kubectl("delete", "pod", f"{RELEASE}-test-storage")

    assert tested.returncode != 0
    assert f"/runs (claim {RELEASE}-runs) is not writable by user 10001, group 10001: " in tested.stdout


def calls_seen_by_the_autoscaler(release: TeamRelease) -> str | None:
    """Calls in flight per replica; Prometheus needs a moment to find a release."""
    scaler = release.namespace.get("horizontalpodautoscaler", TOOL_SERVER) or {}
    metrics = scaler.get("status", {}).get("currentMetrics") or []
    return next((found["pods"]["current"]["averageValue"] for found in metrics if found.get("type") == "Pods"), None)


def test_scaling_up_and_down_with_load_neither_loses_nor_repeats_a_call(release: TeamRelease, caller: Caller):
    served = release.namespace.try_kubectl("get", "--raw", "/apis/custom.metrics.k8s.io/v1beta2")
    if served.returncode:
        pytest.skip("needs custom metrics, such as prometheus-adapter's")
    wait_for("the autoscaler's metric", lambda: calls_seen_by_the_autoscaler(release), seconds=180)
    assert release.num_ready() == 1

    burst = caller.begin(url=URL, trajectories=16, seconds=45, sleep=0.7)
    wait_for("more replicas", lambda: release.num_ready() > 1 or None, seconds=60)
    assert_nothing_lost_or_repeated(caller.finish(burst, seconds=120))

    rest = caller.begin(url=URL, trajectories=2, seconds=100, sleep=0.2, pause=3)
    wait_for("one replica", lambda: len(release.tool_server_pods()) == 1 or None, seconds=240)
    assert_nothing_lost_or_repeated(caller.finish(rest, seconds=180))


def test_a_terminating_replica_answers_its_running_calls_first(release: TeamRelease, caller: Caller):
    (replica,) = release.tool_server_pods()
    url = f"http://{replica['status']['podIP']}:5000"

    caller.wait_until_reachable(replica["status"]["podIP"])
    running = caller.begin(url=url, trajectories=1, calls=1, sleep=15, patience=20)
    wait_for("running call", lambda: release.calls_in_flight().get(name(replica)), seconds=30)
    release.namespace.kubectl("delete", "pod", name(replica), "--wait=false")
    wait_for("end of the replica", lambda: release.namespace.get("pod", name(replica)) is None or None, seconds=60)
    output, errors = running.communicate(timeout=60)

    assert output.startswith("answered 0 "), errors
    # The next call goes to the replica that has ended.
    assert "call 1 of" in errors
    release.wait_until_ready()


def test_an_upgrade_to_another_image_during_calls_loses_none(release: TeamRelease, caller: Caller):
    before = {name(replica) for replica in release.tool_server_pods()}

    calls = caller.begin(url=URL, trajectories=6, seconds=40, sleep=0.5)
    wait_for("calls", lambda: sum(release.calls_in_flight().values()) or None, seconds=30)
    release.install({"toolServer.image.repository": "docker.io/turnmill/tool-server"})
    after = {name(replica) for replica in release.tool_server_pods()}
    report = caller.finish(calls, seconds=120)

    assert before.isdisjoint(after)
    assert_nothing_lost_or_repeated(report)


def test_the_store_keeps_its_records_when_its_pod_is_deleted(release: TeamRelease, caller: Caller):
    calls = caller.begin(url=URL, trajectories=4, seconds=25, sleep=0.3)
    wait_for("calls", lambda: sum(release.calls_in_flight().values()) or None, seconds=30)
    release.namespace.kubectl("delete", "pod", f"{STORE}-0", "--wait=false")

    assert_nothing_lost_or_repeated(caller.finish(calls, seconds=180))
    release.wait_until_ready()


def test_pods_of_another_team_reach_neither_store_nor_tool_servers_nor_metrics(
    release: TeamRelease, caller: Caller, prefix: str
):
    (replica, *_) = release.tool_server_pods()
    team = release.namespace.name
    targets = [
        (f"{STORE}.{team}.svc", 6379),
        (f"{TOOL_SERVER}.{team}.svc", 5000),
        (replica["status"]["podIP"], 5000),
    ]
    assert all(can_connect(release.namespace, caller.name, host, port) for host, port in targets)
    # Metrics are for Prometheus alone.
    targets.append((replica["status"]["podIP"], 9464))
    assert not can_connect(release.namespace, caller.name, *targets[-1])

    with temporary_namespace(prefix, labels=RESTRICTED) as other:
        for stranger, labels in (("stranger", {}), ("pretender", RAY_LABELS)):
            other.apply(pod(stranger, labels))
            other.kubectl("wait", "--for=condition=Ready", f"pod/{stranger}", "--timeout=60s", timeout=70)
            assert can_connect(other, stranger, "kube-dns.kube-system.svc", 53)
            assert not any(can_connect(other, stranger, host, port) for host, port in targets), stranger


def test_tool_servers_refuse_calls_without_the_token_of_the_team(release: TeamRelease, caller: Caller):
    answers = [
        release.namespace.kubectl(
            "exec", caller.name, "--", "python", "-c", ASK.format(url=URL, headers=headers)
        ).strip()
        for headers in ({}, {"Authorization": "Bearer another-teams-token"})
    ]

    assert answers == ["401", "401"]


def test_a_pod_that_no_network_policy_selects_reaches_neither_store_nor_tool_servers(release: TeamRelease):
    release.namespace.apply(pod("unnamed", {}))
    release.namespace.kubectl("wait", "--for=condition=Ready", "pod/unnamed", "--timeout=60s", timeout=70)

    assert can_connect(release.namespace, "unnamed", "kube-dns.kube-system.svc", 53)
    assert not can_connect(release.namespace, "unnamed", STORE, 6379)
    assert not can_connect(release.namespace, "unnamed", TOOL_SERVER, 5000)


def test_a_tool_server_reaches_the_store_but_neither_the_api_server_nor_prometheus(release: TeamRelease):
    (replica, *_) = release.tool_server_pods()

    assert can_connect(release.namespace, name(replica), STORE, 6379)
    for host, port in (("kubernetes.default.svc", 443), ("prometheus.monitoring.svc", 9090)):
        assert not can_connect(release.namespace, name(replica), host, port), host


def test_prometheus_has_the_metrics_of_every_replica(release: TeamRelease):
    team = release.namespace.name
    with prometheus_of_cluster(since=time.time()) as prometheus:
        if prometheus is None:
            pytest.skip("needs Prometheus as the service prometheus in the namespace monitoring")

        def scraped() -> bool:
            found = prometheus.history(f'turnmill_tool_calls_in_flight{{namespace="{team}"}}')
            pods = {series["metric"]["pod"] for series in found}
            return pods >= {name(replica) for replica in release.tool_server_pods()}

        wait_for("metrics of every replica", scraped, seconds=90)


def name(found: dict[str, Any]) -> str:
    found_name: str = found["metadata"]["name"]
    return found_name


def test_an_uninstalled_release_leaves_no_objects(release: TeamRelease):
    release.uninstall()

    def left() -> list[str]:
        kinds = (
            "deployments,statefulsets,services,secrets,persistentvolumeclaims,networkpolicies,horizontalpodautoscalers"
        )
        listed = release.namespace.list(kinds, "app.kubernetes.io/part-of=turnmill")
        return [f"{found['kind']}/{name(found)}" for found in listed]

    deadline = time.monotonic() + 60
    while left() and time.monotonic() < deadline:
        time.sleep(1)
    assert left() == []
