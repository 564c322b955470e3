"""From `kubectl apply` to a trained policy, also through kills and upgrades, and complete deletion of jobs.

A status may be half a minute old, in which a run takes five steps: tests that need the exact step read the run's files.
Every run takes minutes to start, so each test injects several faults, one at a time.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.charts import OPERATOR, TEAM, helm
from support.dashboard_queries import needs_gpus, queries_of_operator, queries_of_ray, queries_without_data
from support.kubernetes import is_ready, wait_for
from support.prometheus import prometheus_of_cluster
from support.team_jobs import OPERATOR_PODS, RELEASE_OF_OPERATOR, SubmittedJob, Team
from support.team_release import RELEASE, STORE, TOOL_SERVER, TOOL_SERVER_PODS

pytestmark = pytest.mark.timeout(1800)

SHORT_VALIDATION, NO_VALIDATION = {"episodes": 32}, {"episodes": 0}
RUN_SECONDS = 1200.0
OUTAGE_SECONDS = 60.0
RANGES = {"__rate_interval": "30s", "window": "1m", "__range": "5m"}
"""The values that Grafana inserts, for scrapes every five seconds."""

# The kernel keeps fifteen characters of a name.
LEARNER, ENGINE = "ray::WorkerDict", "ray::EngineServ"
STORE_PODS = f"statefulset.kubernetes.io/pod-name={STORE}-0"


def processes(job: SubmittedJob, group: str) -> str:
    """Return the names of the processes in the pods of a worker group."""
    pods = job.team.pods(f"{job.labels},ray.io/group={group}")
    # A process may end during the listing.
    look = "cat /proc/[0-9]*/comm 2>/dev/null || true"
    return "".join(job.team.namespace.run_in(pod, "sh", "-c", look) for pod in pods)


def stop(job: SubmittedJob, group: str, name: str) -> None:
    """Stop the processes of a name in the first pod of a worker group by a signal."""
    pod = job.team.pods(f"{job.labels},ray.io/group={group}")[0]
    stop = 'for each in /proc/[0-9]*; do [ "$(cat $each/comm)" = "$0" ] && kill -STOP ${each#/proc/}; done; true'
    job.team.namespace.run_in(pod, "sh", "-c", stop, name)


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A completed run."""

    job: SubmittedJob
    rewards: dict[int, float]
    """Mean rewards that the status showed, by step."""

    submitted_at: float


@pytest.fixture(scope="module")
def babyai(team: Team) -> CompletedRun:
    """A shortened run of the BabyAI example."""
    submitted_at = time.time()
    job = team.submit("babyai-goto-cpu.yaml", "babyai", training__steps=6, training__validation=SHORT_VALIDATION)
    return CompletedRun(job, job.wait_until_complete(seconds=RUN_SECONDS), submitted_at)


def test_the_babyai_example_completes_and_its_status_shows_its_progress(team: Team, babyai: CompletedRun):
    job, recorded = babyai.job, babyai.job.rewards()

    assert job.progress["step"] == job.progress["steps"] == 6
    # A status is half a minute old at most, in which a run may take all of its steps.
    assert babyai.rewards == {step: pytest.approx(recorded[step], abs=1e-3) for step in babyai.rewards}
    assert babyai.rewards[6] > recorded[1]
    assert job.progress["infraFailedRatio"] == 0
    assert job.resource["status"]["attempt"] == 1
    wait_for("end of the run's pods", lambda: not team.pods(job.labels), seconds=60)


def test_dashboard_queries_return_the_series_of_the_run_its_engines_and_the_operator(team: Team, babyai: CompletedRun):
    wanted = [query for query in (*queries_of_ray(), *queries_of_operator()) if not needs_gpus(query)]
    assert len(wanted) > 30

    with prometheus_of_cluster(since=babyai.submitted_at) as prometheus:
        if prometheus is None:
            pytest.skip("needs Prometheus as the service prometheus in the namespace monitoring")
        missing = queries_without_data(prometheus, wanted, namespace=team.namespace.name, **RANGES)
        step = f'turnmill_step{{namespace="{team.namespace.name}", training_job="{babyai.job.name}"}}'
        assert prometheus.has_seen(step)

    assert missing == []


@pytest.mark.nightly
def test_a_run_continues_without_an_engine_or_a_rollout_pod_and_repeats_no_step_after_the_loss_of_the_head(team: Team):
    job = team.submit(
        "babyai-goto-separate-cpu.yaml",
        "separate",
        training__steps=18,
        training__checkpointEvery=1,
        training__turnsPerStep=128,
        training__validation=NO_VALIDATION,
        algorithm__criticWarmup={"batches": 1, "steps": 1, "turnsPerStep": 128},
        resources__rollout__replicas=2,
        retries=2,
    )
    job.wait_until_learned(1, seconds=RUN_SECONDS)

    learning, rollout = processes(job, "h100"), processes(job, "a40")
    assert LEARNER in learning
    assert ENGINE not in learning
    assert ENGINE in rollout
    assert LEARNER not in rollout

    # Well before the run counts as stalled.
    stop(job, "a40", ENGINE)
    job.wait_until_learned(job.learned_steps()[-1] + 3, seconds=RUN_SECONDS)

    team.kill(f"{job.labels},ray.io/group=a40", at_most=1)
    # Rollout is one step ahead: the last of three steps comes from the engine that is left.
    job.wait_until_learned(job.learned_steps()[-1] + 3, seconds=RUN_SECONDS)
    assert job.resource["status"]["attempt"] == 1, job.resource["status"]

    # The next attempt resumes from the checkpoint.
    team.kill(f"{job.labels},ray.io/node-type=head")
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 2
    assert job.learned_steps() == list(range(1, 19))


def replace(team: Team, selector: str, fault: Callable[[], object]) -> None:
    """Cause a fault, and wait until every pod of a selector has been replaced by a ready one."""
    before = {pod["metadata"]["uid"] for pod in team.namespace.list("pods", selector)}
    assert before, selector
    fault()

    def replaced() -> bool:
        pods = team.namespace.list("pods", selector)
        return bool(pods) and all(is_ready(pod) and pod["metadata"]["uid"] not in before for pod in pods)

    wait_for(f"other pods of {selector}", replaced, seconds=240)


def upgrade(team: Team, release: str, chart: Path, image: str) -> None:
    """Upgrade as in docs/upgrades.md, to the same image under another name, so that pods are replaced."""
    where = [release, str(chart), f"--namespace={team.namespace.name}"]
    helm("upgrade", *where, "--reset-then-reuse-values", f"--set={image}")


def next_version(chart: Path, folder: Path) -> Path:
    """Return a copy of the chart with the next version."""
    copy = shutil.copytree(chart, folder / chart.name)
    declared = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(declared.replace("version: 0.1.0\n", "version: 0.1.1\n", 1))
    return copy


@pytest.mark.nightly
def test_kills_and_upgrades_lose_no_turn_and_a_deleted_job_leaves_no_objects_or_keys(team: Team, tmp_path: Path):
    # On a busy machine, a pod may take longer to start than the 30 s that a call has by default.
    changes = {"training__steps": 28, "training__validation": NO_VALIDATION, "agent__toolCallTimeout": 120}
    job = team.submit("tool-arithmetic-cpu.yaml", "tools", **changes)
    job.wait_for_step(1, seconds=RUN_SECONDS)

    replace(team, OPERATOR_PODS, lambda: team.kill(OPERATOR_PODS))
    job.wait_for_step(job.progress["step"] + 1, seconds=RUN_SECONDS)
    replace(team, TOOL_SERVER_PODS, lambda: team.kill(TOOL_SERVER_PODS))
    replace(team, STORE_PODS, lambda: team.kill(STORE_PODS))

    (store,) = team.namespace.list("pods", STORE_PODS)
    operator, team_chart = next_version(OPERATOR, tmp_path), next_version(TEAM, tmp_path)
    image = "operator.image.repository=docker.io/turnmill/operator"
    replace(team, OPERATOR_PODS, lambda: upgrade(team, RELEASE_OF_OPERATOR, operator, image))
    image = "toolServer.image.repository=docker.io/turnmill/tool-server"
    replace(team, TOOL_SERVER_PODS, lambda: upgrade(team, RELEASE, team_chart, image))
    assert team.namespace.list("pods", STORE_PODS)[0]["metadata"]["uid"] == store["metadata"]["uid"]
    assert job.learned_steps()[-1] < 28, "the run ended before the last fault"
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert job.summary()["failures"] == {}
    assert job.summary()["steps"] == 28
    assert team.store_keys()
    team.namespace.delete("agenttrainingjob", job.name)
    wait_for("store without keys of the run", lambda: not team.store_keys(), seconds=120)
    # The pod of the clean-up goes after its Job.
    for kind in ("rayjobs", "rayclusters", "jobs", "pods", "services"):
        wait_for(f"end of {kind}", lambda kind=kind: not team.namespace.list(kind, job.labels), seconds=60)


def take_away(team: Team, workload: str, selector: str, seconds: float) -> None:
    """Leave a workload without pods for a time."""
    namespace = team.namespace
    namespace.kubectl("scale", workload, "--replicas=0")
    wait_for(f"end of {workload}", lambda: not namespace.list("pods", selector), seconds=120)
    time.sleep(seconds)
    namespace.kubectl("scale", workload, "--replicas=1")
    wait_for(f"ready {workload}", lambda: any(map(is_ready, namespace.list("pods", selector))) or None, seconds=240)


@pytest.mark.nightly
def test_a_minute_without_the_store_and_one_without_tool_servers_cost_neither_turn_nor_attempt(team: Team):
    # Longer than an outage and the start of a pod on a busy machine.
    patience = {"agent__toolOutageTimeout": 600}
    changes = {"training__steps": 12, "training__validation": NO_VALIDATION, **patience}
    job = team.submit("tool-arithmetic-cpu.yaml", "outages", **changes)
    job.wait_for_step(1, seconds=RUN_SECONDS)

    take_away(team, f"statefulset/{STORE}", STORE_PODS, OUTAGE_SECONDS)
    job.wait_until_learned(job.learned_steps()[-1] + 2, seconds=RUN_SECONDS)
    take_away(team, f"deployment/{TOOL_SERVER}", TOOL_SERVER_PODS, OUTAGE_SECONDS)
    assert job.learned_steps()[-1] < 12, "the run ended before the last outage"
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert job.summary()["failures"] == {}
    assert job.learned_steps() == list(range(1, 13))


def drain(team: Team, selector: str) -> None:
    """Drain the node that has the pods of a selector, of these pods, and let it take pods again."""
    (node,) = {pod["spec"]["nodeName"] for pod in team.namespace.list("pods", selector)}
    chosen = [f"--pod-selector={selector}", "--ignore-daemonsets", "--delete-emptydir-data"]
    try:
        team.namespace.kubectl("drain", node, *chosen, "--timeout=180s", timeout=200)
    finally:
        team.namespace.kubectl("uncordon", node)


@pytest.mark.nightly
def test_a_run_whose_node_is_drained_goes_on_from_its_checkpoint_and_no_attempt_counts_as_failed(team: Team):
    steps = {"training__steps": 12, "training__checkpointEvery": 1, "training__validation": NO_VALIDATION}
    job = team.submit("tool-arithmetic-cpu.yaml", "drained", **steps, retries=0)
    job.wait_until_learned(3, seconds=RUN_SECONDS)

    drain(team, job.labels)
    job.wait_until_complete(seconds=RUN_SECONDS)

    status = job.resource["status"]
    assert (status["attempt"], status["failedAttempts"], status["disruptedAttempts"]) == (2, 0, 1)
    assert job.learned_steps() == list(range(1, 13))
    assert job.summary()["failures"] == {}


def test_a_job_that_outlives_its_operator_can_be_deleted(team: Team):
    job = team.submit("tool-arithmetic-cpu.yaml", "left", training__validation=NO_VALIDATION)
    wait_for("the operator's finalizer", lambda: job.resource["metadata"].get("finalizers"), seconds=60)

    helm("uninstall", RELEASE_OF_OPERATOR, f"--namespace={team.namespace.name}", "--wait")

    assert "finalizers" not in job.resource["metadata"]
    team.namespace.kubectl("delete", "agenttrainingjob", job.name, "--timeout=60s")
    for kind in ("rayjobs", "pods"):
        wait_for(f"end of {kind}", lambda kind=kind: not team.namespace.list(kind, job.labels), seconds=120)
    of_operator = f"app.kubernetes.io/instance={RELEASE_OF_OPERATOR},app.kubernetes.io/part-of=turnmill"
    kinds = "deployments,jobs,services,serviceaccounts,roles,rolebindings,networkpolicies"
    wait_for("end of the release's objects", lambda: not team.namespace.list(kinds, of_operator), seconds=60)
