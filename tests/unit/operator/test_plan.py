import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from support.ray_jobs import START, UID, at, pod_template, raw_job, raw_ray_job, raw_team, stamp
from turnmill.jobs.status import JobProgress, JobStatus
from turnmill_operator.desired import desired
from turnmill_operator.plan import Plan
from turnmill_operator.status import find_condition
from turnmill_operator.views import (
    CleanUpView,
    Disruption,
    KubeRay,
    Observed,
    RunProgress,
    job_view,
    ray_job_view,
    team_view,
)

TEAM = team_view(raw_team())
SHARED_TEAM = team_view(raw_team(sharedCluster="team"))
CLEAN_UP_TEAM = team_view(raw_team(cleanUp={"template": pod_template()}))

RUNNING = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "rayClusterName": "job-1-abcde"}
SUCCEEDED = {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}
FAILED = {
    "jobStatus": "FAILED",
    "jobDeploymentStatus": "Failed",
    "reason": "AppFailed",
    "message": "Job entrypoint command failed with exit code 1, last available logs: CUDA error",
}


def plan_for(
    job: dict[str, Any],
    *ray_jobs: dict[str, Any],
    team: Any = TEAM,
    now: datetime = START,
    status: JobStatus | None = None,
    **observed: Any,
) -> Plan:
    view = job_view(job)
    view = view if status is None else replace(view, status=status)
    return desired(view, Observed(team=team, ray_jobs=tuple(map(ray_job_view, ray_jobs)), **observed), now)


def status_after(job: dict[str, Any], *ray_jobs: dict[str, Any], **options: Any) -> JobStatus:
    """Return the status after a reconciliation of a job that has started its first attempt."""
    status = plan_for(job, *ray_jobs, **{"status": STARTED, **options}).status
    assert status is not None
    return status


def reasons(status: JobStatus | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    return {found.type: (found.status, found.reason) for found in status.conditions}


def message(status: JobStatus | None, kind: Any) -> str:
    assert status is not None
    found = find_condition(status, kind)
    assert found is not None
    return found.message


def renumbered(ray_job: dict[str, Any], *, attempt: int) -> dict[str, Any]:
    """Return the RayJob of an attempt that a queue has kept for a later one."""
    labels = ray_job["metadata"]["labels"] | {"turnmill.dev/attempt": str(attempt)}
    return {**ray_job, "metadata": {**ray_job["metadata"], "labels": labels}}


STARTED = plan_for(raw_job()).status
assert STARTED is not None


def test_a_job_starts_its_first_attempt():
    plan = plan_for(raw_job())

    (ray_job,) = plan.apply
    assert ray_job["metadata"]["name"] == "job-1"
    assert plan.status is not None
    assert (plan.status.state, plan.status.attempt, plan.status.observed_generation) == ("Starting", 1, 1)
    assert reasons(plan.status) == {
        "Admitted": ("True", "Admitted"),
        "ClusterReady": ("False", "WaitingForPods"),
        "Running": ("False", "WaitingForCluster"),
        "Complete": ("False", "NotFinished"),
        "Failed": ("False", "NotFinished"),
        "Suspended": ("False", "NotSuspended"),
    }


def test_a_second_reconciliation_changes_nothing():
    first = plan_for(raw_job())

    second = plan_for(raw_job(), raw_ray_job(), status=first.status, now=at(5))

    assert second.apply == ()
    assert second.delete == ()
    assert second.status is not None
    assert plan_for(raw_job(), raw_ray_job(), status=second.status, now=at(9)).status is None


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "no team": ({}, {"team": None}, "NoTeam", "Namespace team-a has no ConfigMap turnmill-team. Install the chart"),
    "an invalid team": ({}, {"team": team_view({"data": {}})}, "BrokenTeam", "has no key team.yaml"),
    "no KubeRay": ({}, {"kuberay": None}, "NoKubeRay", "Install KubeRay 1.5.1 or later"),
    "a KubeRay without tokens": (
        {},
        {"kuberay": KubeRay(ray_tokens=False)},
        "KubeRayTooOld",
        "Upgrade KubeRay, with its CustomResourceDefinitions, to 1.5.1 or later",
    ),
    "an unknown accelerator": (
        {"resources__train": {"accelerator": "B200"}},
        {},
        "NoSuchAccelerator",
        "spec.resources.train.accelerator: 'B200' is none of the team's accelerators (H100, A40). Use one of them",
    ),
    "GPUs without any": (
        {"resources__device": "cuda"},
        {},
        "NoSuchDevice",
        "spec.resources.device: 'cuda', but the pods of h100 have no GPU. Set it to cpu or auto",
    ),
    "too many GPUs": (
        {"resources__train": {"gpusPerNode": 4}},
        {},
        "TooManyGpus",
        "spec.resources.train.gpusPerNode: 4 is more than the 1 GPUs of a node of h100. Ask for at most 1",
    ),
    "engines larger than a node": (
        {
            "training__mode": "separate_async",
            "training__maxStaleness": 1,
            "resources__train": {"accelerator": "H100"},
            "resources__rollout": {"accelerator": "A40", "replicas": 1},
            "verl": {"actor_rollout_ref.rollout": {"tensor_model_parallel_size": 2}},
        },
        {},
        "TooManyGpus",
        "tensor_model_parallel_size: 2 is more than the 1 GPUs of a node of a40, and an engine is on one node. Ask",
    ),
    "an engine without a size": (
        {"verl": {"actor_rollout_ref.rollout.tensor_model_parallel_size": None}},
        {},
        "InvalidSpec",
        "spec.verl.actor_rollout_ref.rollout.tensor_model_parallel_size: null must be a whole number, at least 1.",
    ),
    "too many nodes": (
        {"resources__train": {"nodes": 4}},
        {},
        "TooManyNodes",
        "spec.resources.train.nodes: the job needs 4 nodes of h100, and the team may have 2. Ask for fewer",
    ),
    "no shared cluster": ({"cluster": "shared"}, {}, "NoSharedCluster", "the team has no shared Ray cluster. Set it"),
    "an invalid spec": ({"agent__prompt": "cot"}, {}, "InvalidSpec", "spec.agent.prompt: 'cot' must be compact with"),
    "a refused RayJob": (
        {},
        {"apply_error": "exceeded quota"},
        "RayJobRefused",
        "refuses the RayJob: exceeded quota",
    ),
}


@pytest.mark.parametrize(("change", "observed", "reason", "expected_message"), REFUSALS.values(), ids=REFUSALS)
def test_a_job_that_cannot_run_reports_a_reason_and_a_message(
    change: dict[str, Any], observed: dict[str, Any], reason: str, expected_message: str
):
    plan = plan_for(raw_job(**change), **observed)

    assert plan.apply == ()
    assert plan.status is not None
    assert plan.status.state == "NotAdmitted"
    assert reasons(plan.status)["Admitted"] == ("False", reason)
    assert expected_message in message(plan.status, "Admitted")


def test_a_job_starts_once_its_team_exists():
    refused = plan_for(raw_job(), team=None)

    plan = plan_for(raw_job(), status=refused.status)

    assert [made["metadata"]["name"] for made in plan.apply] == ["job-1"]
    assert reasons(plan.status)["Admitted"] == ("True", "Admitted")


def test_a_shared_cluster_runs_one_job_at_a_time():
    job = raw_job(cluster="shared")

    waiting = plan_for(job, team=SHARED_TEAM, blocked_by="first")
    started = plan_for(job, team=SHARED_TEAM, status=waiting.status)

    assert (waiting.apply, waiting.requeue_at) == ((), at(30))
    assert waiting.status is not None
    assert waiting.status.state == "Queued"
    assert reasons(waiting.status)["ClusterReady"] == ("False", "SharedClusterBusy")
    assert message(waiting.status, "ClusterReady").startswith("Job first goes first on the team's shared Ray cluster")
    (ray_job,) = started.apply
    assert ray_job["spec"]["clusterSelector"] == {"ray.io/cluster": "team"}


def test_a_run_continues_after_its_team_was_deleted():
    running = status_after(raw_job(), raw_ray_job(**RUNNING), team=None)

    assert reasons(running)["Running"] == ("True", "Started")


def test_a_job_waits_for_the_rayjob_of_an_earlier_job_of_its_name():
    plan = plan_for(raw_job(), raw_ray_job(uid="of-another-job"))

    assert plan.apply == ()
    assert reasons(plan.status)["Admitted"] == ("False", "NameTaken")


def test_conditions_follow_the_rayjob():
    ray_jobs = [
        raw_ray_job(jobDeploymentStatus="Initializing"),
        raw_ray_job(jobDeploymentStatus="Running", jobStatus="PENDING"),
        raw_ray_job(**RUNNING),
        raw_ray_job(**SUCCEEDED),
    ]

    statuses = [status_after(raw_job(), ray_job) for ray_job in ray_jobs]

    assert [status.state for status in statuses] == ["Starting", "Starting", "Running", "Complete"]
    assert [[reasons(status)[kind] for kind in ("ClusterReady", "Running", "Complete")] for status in statuses] == [
        [("False", "WaitingForPods"), ("False", "WaitingForCluster"), ("False", "NotFinished")],
        [("True", "Ready"), ("False", "WaitingForRun"), ("False", "NotFinished")],
        [("True", "Ready"), ("True", "Started"), ("False", "NotFinished")],
        [("False", "Released"), ("False", "Ended"), ("True", "ReachedLastStep")],
    ]


def test_transition_time_is_that_of_the_last_change():
    first = status_after(raw_job(), raw_ray_job(**RUNNING), now=at(10))
    second = status_after(
        raw_job(),
        raw_ray_job(**RUNNING),
        status=first,
        now=at(20),
        progress=RunProgress(JobProgress(step=1)),
    )

    found = find_condition(second, "Running")
    assert found is not None
    assert (found.reason, found.last_transition_time) == ("Training", at(10))


def test_pending_pods_are_reported_in_the_schedulers_words():
    waiting = status_after(raw_job(), raw_ray_job(rayClusterName="c"), pending_pods="Insufficient nvidia.com/gpu")

    assert reasons(waiting)["ClusterReady"] == ("False", "PodsNotReady")
    assert "Insufficient nvidia.com/gpu. See `kubectl describe pods -l ray.io/cluster=c`" in message(
        waiting, "ClusterReady"
    )


def test_a_complete_job_shows_its_last_step():
    status = status_after(
        raw_job(), raw_ray_job(**SUCCEEDED), progress=RunProgress(JobProgress(step=17, steps=20, reward_mean=0.8))
    )

    assert status.progress == JobProgress(step=20, steps=20, reward_mean=0.8, checkpoint_step=20)


def test_progress_is_reported():
    progress = JobProgress(step=3, steps=20, reward_mean=0.4, rollouts_per_second=1.5)

    status = status_after(raw_job(), raw_ray_job(**RUNNING), progress=RunProgress(progress))

    assert status.progress == progress
    assert reasons(status)["Running"] == ("True", "Training")


# Failures and retries


def test_a_failed_attempt_is_retried_after_a_backoff():
    job = raw_job(retries=2)

    failed = plan_for(job, raw_ray_job(**FAILED), status=STARTED, now=at(100))

    assert failed.status is not None
    assert (failed.status.state, failed.status.attempt, failed.status.failed_attempts) == ("Retrying", 1, 1)
    assert failed.status.next_attempt_time == failed.requeue_at == at(110)
    assert [found.name for found in failed.delete] == ["job-1"]
    assert "Attempt 1 failed: Job entrypoint command failed with exit code 1" in message(failed.status, "Running")
    assert plan_for(job, status=failed.status, now=at(109)).apply == ()
    (ray_job,) = plan_for(job, status=failed.status, now=at(110)).apply
    assert ray_job["metadata"]["name"] == "job-2"


def test_backoff_doubles_up_to_a_limit():
    waits = []
    for failed in range(7):
        status = STARTED.model_copy(update={"failed_attempts": failed})
        due = status_after(raw_job(retries=100), raw_ray_job(**FAILED), status=status).next_attempt_time
        assert due is not None
        waits.append((due - at(0)).total_seconds())

    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_a_job_without_retries_left_fails():
    plan = plan_for(raw_job(), raw_ray_job(**FAILED), status=STARTED)

    assert plan.status is not None
    assert plan.status.state == "Failed"
    assert reasons(plan.status)["Failed"] == ("True", "RunFailed")
    assert reasons(plan.status)["Complete"] == ("False", "NotFinished")
    assert plan.delete == ()
    assert "Raise spec.retries to carry on from the last checkpoint" in message(plan.status, "Failed")


def test_a_job_that_names_no_retries_has_three():
    job = raw_job()
    del job["spec"]["retries"]

    states = [
        status_after(job, raw_ray_job(**FAILED), status=STARTED.model_copy(update={"failed_attempts": failed})).state
        for failed in range(4)
    ]

    assert states == ["Retrying", "Retrying", "Retrying", "Failed"]


def test_a_failed_job_continues_once_its_retries_are_raised():
    failed = status_after(raw_job(), raw_ray_job(**FAILED))
    ended = raw_ray_job(**FAILED)

    assert plan_for(raw_job(), ended, status=failed, now=at(60)).status is None
    revived = plan_for(raw_job(retries=2), ended, status=failed, now=at(60))
    assert revived.status is not None
    assert (revived.status.state, revived.status.failed_attempts) == ("Retrying", 1)
    assert reasons(revived.status)["Failed"] == ("False", "NotFinished")
    assert "spec.retries was raised to 2: attempt 2 starts" in message(revived.status, "Running")

    started = plan_for(raw_job(retries=2), ended, status=revived.status, now=at(60))
    (ray_job,) = started.apply
    assert ray_job["metadata"]["name"] == "job-2"
    assert [found.name for found in started.delete] == ["job-1"]


def test_a_job_whose_next_attempt_would_fail_in_the_same_way_does_not_continue_with_more_retries():
    gave_up = raw_ray_job(**FAILURES["too many failed episodes"][0])
    failed = status_after(raw_job(), gave_up)

    assert plan_for(raw_job(retries=9), gave_up, status=failed, now=at(60)).status is None


def avoided(group: dict[str, Any]) -> list[str]:
    """The nodes that the pods of a group prefer not to run on."""
    preferred = group["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = preferred.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    return [node for term in terms for node in term["preference"]["matchExpressions"][0]["values"]]


def test_the_next_attempt_avoids_the_nodes_on_which_pods_died():
    ended = raw_ray_job(**FAILED)
    failed = status_after(raw_job(retries=3), ended, failed_nodes=("node-1", "node-2"))

    (ray_job,) = plan_for(raw_job(retries=3), status=failed, now=at(100)).apply

    assert failed.failed_nodes == ("node-1", "node-2")
    cluster = ray_job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert [avoided(group) for group in groups] == [["node-1", "node-2"]] * len(groups)


def test_a_run_that_kueue_holds_keeps_its_pods_as_they_were():
    status = STARTED.model_copy(update={"failed_nodes": ("node-1",)})
    (made,) = plan_for(raw_job(queue="q"), status=status.model_copy(update={"state": "Queued"})).apply
    running = status_after(raw_job(queue="q"), raw_ray_job(**RUNNING), status=status)
    evicted = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")

    (again,) = plan_for(raw_job(queue="q"), evicted, status=running).apply

    for ray_job in (made, again):
        assert avoided(ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]) == ["node-1"]


def test_of_many_nodes_on_which_pods_died_the_newest_are_avoided():
    before = tuple(f"node-{number}" for number in range(8))
    started = STARTED.model_copy(update={"failed_nodes": before})

    found = status_after(raw_job(retries=3), raw_ray_job(**FAILED), status=started, failed_nodes=("node-3", "new"))

    assert found.failed_nodes == ("node-1", "node-2", "node-4", "node-5", "node-6", "node-7", "node-3", "new")


@pytest.mark.parametrize("name", ["a lost head", "an error of the run", "a failed submission"])
def test_an_attempt_that_kubernetes_disrupts_is_repeated_without_counting_as_failed(name: str):
    ended = raw_ray_job(**FAILURES[name][0])
    evicted = Disruption(at(0), "pod job-1-head (EvictionByEvictionAPI: Eviction API: evicting)")

    plan = plan_for(raw_job(), ended, status=STARTED, disruption=evicted, now=at(100))

    assert plan.status is not None
    found = plan.status
    assert (found.state, found.failed_attempts, found.disrupted_attempts) == ("Retrying", 0, 1)
    assert reasons(found)["Running"] == ("False", "Disrupted")
    assert "was disrupted by the loss of pod job-1-head (EvictionByEvictionAPI" in message(found, "Running")
    assert [deleted.name for deleted in plan.delete] == ["job-1"]
    (ray_job,) = plan_for(raw_job(), status=found, disruption=evicted, now=at(110)).apply
    assert ray_job["metadata"]["name"] == "job-2"


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("an error of the run", 901), ("refused settings", 10), ("a stopped RayJob", 10), ("an exceeded deadline", 10)],
)
def test_a_failure_that_no_disruption_can_have_caused_counts(name: str, seconds: float):
    ended = raw_ray_job(**FAILURES[name][0])

    found = status_after(raw_job(), ended, disruption=Disruption(at(0), "pod a"), now=at(seconds))

    assert (found.state, found.failed_attempts, found.disrupted_attempts) == ("Failed", 1, 0)


FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "refused settings": ({**FAILED, "message": "failed with exit code 2, logs"}, "SettingsRefused", "Failed"),
    "an invalid RayJob": ({"jobDeploymentStatus": "ValidationFailed", "message": "no"}, "RayJobRefused", "Failed"),
    "a lost head": ({**FAILED, "message": "failed with exit code 3, logs"}, "HeadLost", "Retrying"),
    "too many failed episodes": ({**FAILED, "message": "failed with exit code 4, logs"}, "RunGaveUp", "Failed"),
    "a stopped RayJob": ({"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"}, "RunStopped", "Retrying"),
    "a failed submission": (
        {"jobDeploymentStatus": "Failed", "reason": "SubmissionFailed"},
        "SubmissionFailed",
        "Retrying",
    ),
    "an exceeded deadline": (
        {"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"},
        "StartTimeout",
        "Retrying",
    ),
    "an error of the run": (FAILED, "RunFailed", "Retrying"),
}


@pytest.mark.parametrize(("ray_status", "reason", "state"), FAILURES.values(), ids=FAILURES)
def test_a_failure_that_would_repeat_is_not_retried(ray_status: dict[str, Any], reason: str, state: str):
    with_retries = status_after(raw_job(retries=1), raw_ray_job(**ray_status))
    without = status_after(raw_job(), raw_ray_job(**ray_status))

    assert with_retries.state == state
    assert reasons(without)["Failed"] == ("True", reason)


def test_a_deleted_rayjob_counts_as_a_failed_attempt():
    status = status_after(raw_job(retries=1))

    assert (status.state, status.failed_attempts) == ("Retrying", 1)
    assert "its RayJob is gone" in message(status, "Running")


def test_an_attempt_without_a_cluster_in_time_fails():
    job = raw_job(startTimeoutSeconds=60)
    starting = raw_ray_job(jobDeploymentStatus="Initializing", startTime=stamp(at(10)))

    before = plan_for(job, starting, status=STARTED, now=at(69))
    after = plan_for(job, starting, status=STARTED, now=at(70))

    assert before.requeue_at == at(70)
    assert reasons(after.status)["Failed"] == ("True", "StartTimeout")
    assert [found.name for found in after.delete] == ["job-1"]


def test_an_attempt_that_was_not_ready_in_time_says_why_its_pods_did_not_run():
    starting = raw_ray_job(jobDeploymentStatus="Initializing", startTime=stamp(at(10)))

    failed = plan_for(
        raw_job(startTimeoutSeconds=60), starting, status=STARTED, now=at(70), pending_pods="exceeded quota: gpus"
    )

    assert "within spec.startTimeoutSeconds (60): exceeded quota: gpus." in message(failed.status, "Failed")


def test_time_in_a_queue_does_not_count_as_start_time():
    job = raw_job(startTimeoutSeconds=60, queue="q")
    queued = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended", startTime=stamp(at(0)))
    admitted = raw_ray_job(queue="q", jobDeploymentStatus="Suspended", startTime=stamp(at(0)))
    # KubeRay clears the status for a moment between two phases.
    in_transition = raw_ray_job(queue="q", jobDeploymentStatus="", startTime=stamp(at(0)))

    assert status_after(job, queued, now=at(9000)).state == "Queued"
    assert status_after(job, admitted, now=at(9000)).state == "Starting"
    assert status_after(job, in_transition, now=at(9000)).state == "Starting"


def test_a_run_that_loses_its_head_is_not_reported_as_a_slow_start():
    job = raw_job(startTimeoutSeconds=60)
    running = status_after(job, raw_ray_job(**RUNNING, startTime=stamp(at(0))), now=at(30))
    submitted_again = {"jobStatus": "PENDING", "jobDeploymentStatus": "Running", "startTime": stamp(at(0))}

    lost = plan_for(job, raw_ray_job(**submitted_again), status=running, now=at(9000))

    assert reasons(lost.status)["Failed"] == ("True", "HeadLost")
    assert [found.name for found in lost.delete] == ["job-1"]


def status_with_progress(**options: Any) -> JobStatus:
    return status_after(raw_job(), raw_ray_job(**RUNNING), progress=RunProgress(JobProgress(step=3)), **options)


@pytest.mark.parametrize(
    ("progress", "lost_at"),
    [
        (RunProgress(JobProgress(step=3), refused_since=at(100)), at(220)),
        (RunProgress(JobProgress(step=3), unreachable_since=at(100)), at(1000)),
    ],
)
def test_a_run_that_stops_answering_is_lost(progress: RunProgress, lost_at: datetime):
    options = {"status": status_with_progress(), "progress": progress}

    assert plan_for(raw_job(), raw_ray_job(**RUNNING), now=at(110), **options).requeue_at == lost_at
    lost = plan_for(raw_job(), raw_ray_job(**RUNNING), now=lost_at, **options)
    assert reasons(lost.status)["Failed"] == ("True", "RunLost")
    assert [found.name for found in lost.delete] == ["job-1"]
    # The deletion is requested again, in case the request was lost.
    assert [found.name for found in plan_for(raw_job(), raw_ray_job(**RUNNING), status=lost.status).delete] == ["job-1"]


def test_a_run_that_never_answered_is_not_counted_as_lost():
    status = status_after(raw_job(), raw_ray_job(**RUNNING), progress=RunProgress(refused_since=at(0)), now=at(9000))

    assert status.state == "Running"


# Suspending and resuming


def test_a_job_created_suspended_gets_a_suspended_rayjob():
    plan = plan_for(raw_job(suspend=True))

    (ray_job,) = plan.apply
    assert ray_job["spec"]["suspend"] is True
    result = status_after(raw_job(suspend=True), raw_ray_job(suspend=True, jobDeploymentStatus="Suspended"))
    assert (result.state, reasons(result)["Suspended"]) == ("Suspended", ("True", "SuspendedBySpec"))


def test_an_attempt_that_never_ran_is_resumed_under_its_number():
    plan = plan_for(raw_job(), raw_ray_job(suspend=True, jobDeploymentStatus="Suspended"), status=STARTED)

    (ray_job,) = plan.apply
    assert (ray_job["metadata"]["name"], ray_job["spec"]["suspend"]) == ("job-1", False)


def test_a_suspended_rayjob_that_never_ran_follows_changes_of_the_job():
    suspended = raw_ray_job(suspend=True, jobDeploymentStatus="Suspended")

    plan = plan_for(raw_job(suspend=True, training__steps=30), suspended, status=STARTED)

    (ray_job,) = plan.apply
    result = json.loads(json.loads(ray_job["spec"]["runtimeEnvYAML"])["env_vars"]["TURNMILL_JOB"])
    assert result["spec"]["training"]["steps"] == 30


def test_a_run_is_suspended_and_resumed_under_a_new_number():
    stopping = plan_for(raw_job(suspend=True), raw_ray_job(**RUNNING), status=STARTED)
    (ray_job,) = stopping.apply
    assert (ray_job["metadata"]["name"], ray_job["spec"]["suspend"]) == ("job-1", True)
    assert ray_job["metadata"]["annotations"]["turnmill.dev/started"] == "true"

    suspended = raw_ray_job(suspend=True, started=True, jobDeploymentStatus="Suspended")
    result = plan_for(raw_job(suspend=True), suspended, status=stopping.status)
    assert (result.status and result.status.state, result.apply) == ("Suspended", ())

    resumed = plan_for(raw_job(), suspended, status=result.status)
    assert [made["metadata"]["name"] for made in resumed.apply] == ["job-2"]
    assert [found.name for found in resumed.delete] == ["job-1"]
    assert resumed.status is not None
    assert (resumed.status.attempt, resumed.status.failed_attempts) == (2, 0)


@pytest.mark.parametrize(("queue", "started"), [(None, ["job-2"]), ("q", [])])
def test_a_rayjob_without_the_suspension_annotation_was_suspended_by_its_job_unless_it_is_queued(
    queue: str | None, started: list[str]
):
    suspended = raw_ray_job(suspend=True, started=True, queue=queue, jobDeploymentStatus="Suspended")
    del suspended["metadata"]["annotations"]["turnmill.dev/suspended"]

    resumed = plan_for(raw_job(queue=queue), suspended, status=STARTED)

    assert [made["metadata"]["name"] for made in resumed.apply] == started


@pytest.mark.parametrize(
    ("change", "team"), [({"queue": "q"}, TEAM), ({"cluster": "shared"}, SHARED_TEAM)], ids=["queue", "shared"]
)
def test_a_run_whose_rayjob_cannot_be_suspended_is_stopped_by_deletion(change: dict[str, Any], team: Any):
    job, options = raw_job(suspend=True, **change), {"team": team}

    stopping = plan_for(job, raw_ray_job(**RUNNING), status=STARTED, **options)
    assert ([found.name for found in stopping.delete], stopping.apply) == (["job-1"], ())

    result = plan_for(job, status=stopping.status, **options)
    assert result.status is not None
    assert (result.status.state, result.status.failed_attempts) == ("Suspended", 0)

    resumed = plan_for(raw_job(**change), status=result.status, **options)
    assert [made["metadata"]["name"] for made in resumed.apply] == ["job-2"]


def test_a_run_that_kueue_evicts_gets_a_new_number_and_keeps_its_rayjob_with_its_place_in_the_queue():
    running = status_after(raw_job(queue="q"), raw_ray_job(**RUNNING))
    evicted = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")

    plan = plan_for(raw_job(queue="q"), evicted, status=running)

    (made,) = plan.apply
    assert made["metadata"]["name"] == "job-1"
    assert made["metadata"]["labels"]["turnmill.dev/attempt"] == "2"
    assert '"TURNMILL_ATTEMPT": "2"' in made["spec"]["runtimeEnvYAML"]
    assert "suspend" not in made["spec"]
    assert plan.delete == ()
    assert plan.status is not None
    assert (plan.status.attempt, plan.status.failed_attempts) == (2, 0)


@pytest.mark.parametrize("seen", [{"jobDeploymentStatus": "Suspended"}, RUNNING], ids=["suspended", "not yet noticed"])
def test_an_evicted_run_waits_under_its_new_number_and_is_not_given_another(seen: dict[str, Any]):
    running = status_after(raw_job(queue="q"), raw_ray_job(**RUNNING))
    plan = plan_for(raw_job(queue="q"), raw_ray_job(held=True, queue="q"), status=running)
    held = renumbered(raw_ray_job(held=True, queue="q", **seen), attempt=2)

    # Also if the operator ended before it wrote the status.
    for status in (running, plan.status):
        waiting = plan_for(raw_job(queue="q"), held, status=status, now=at(9000))
        assert (waiting.apply, waiting.delete) == ((), ())
        assert waiting.status is not None
        assert (waiting.status.state, waiting.status.attempt) == ("Queued", 2)


def test_the_attempt_after_one_that_kept_its_rayjob_has_a_rayjob_of_its_own():
    kept = renumbered(raw_ray_job(queue="q", **FAILED), attempt=2)

    failed = status_after(raw_job(queue="q", retries=1), kept)
    (made,) = plan_for(raw_job(queue="q", retries=1), kept, status=failed, now=at(60)).apply

    assert (failed.attempt, failed.state) == (2, "Retrying")
    assert made["metadata"]["name"] == "job-3"


def test_an_evicted_run_whose_queue_has_changed_gets_a_new_rayjob():
    running = status_after(raw_job(queue="q"), raw_ray_job(**RUNNING))
    evicted = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")

    plan = plan_for(raw_job(queue="other"), evicted, status=running)

    assert [made["metadata"]["name"] for made in plan.apply] == ["job-2"]
    assert [found.name for found in plan.delete] == ["job-1"]


def test_an_evicted_run_that_cannot_start_at_once_keeps_its_place_in_the_queue():
    running = status_after(raw_job(queue="q"), raw_ray_job(**RUNNING))
    evicted = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")
    refused = plan_for(raw_job(queue="q"), evicted, status=running, team=None)
    assert refused.status is not None
    assert refused.status.state == "NotAdmitted"

    (made,) = plan_for(raw_job(queue="q"), evicted, status=refused.status).apply

    assert (made["metadata"]["name"], made["metadata"]["labels"]["turnmill.dev/attempt"]) == ("job-1", "2")


def test_a_waiting_run_shows_kueues_reason():
    held = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")

    status = status_after(raw_job(queue="q"), held, queue_message="LocalQueue q doesn't exist")

    assert message(status, "ClusterReady") == (
        "Kueue has not admitted the run: LocalQueue q doesn't exist. "
        "See `kubectl describe workload -l kueue.x-k8s.io/job-uid=ray-job-uid`."
    )


@pytest.mark.parametrize("queue", [None, "default"])
def test_a_run_held_by_kueue_waits_even_if_its_job_names_no_queue(queue: str | None):
    held = raw_ray_job(held=True, queue=queue)

    waiting = plan_for(raw_job(), held, status=STARTED)

    assert waiting.apply == ()
    assert waiting.status is not None
    assert waiting.status.state == "Queued"
    evicted = plan_for(raw_job(), held, status=status_after(raw_job(), raw_ray_job(**RUNNING)))
    (made,) = evicted.apply
    # Without the label, a RayJob that Kueue has put into its default queue would never start again.
    assert made["metadata"]["name"] == ("job-2" if queue else "job-1")
    assert ("suspend" in made["spec"]) == bool(queue)


@pytest.mark.parametrize("started", [False, True])
def test_a_job_resumed_into_a_queue_gets_a_queued_rayjob(started: bool):
    suspended = raw_ray_job(suspend=True, started=started, jobDeploymentStatus="Suspended")

    plan = plan_for(raw_job(queue="q"), suspended, status=status_after(raw_job(suspend=True), suspended))

    (made,) = plan.apply
    assert made["metadata"]["name"] == "job-2"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert [found.name for found in plan.delete] == ["job-1"]


@pytest.mark.parametrize("kind", [{"shared": True}, {"queue": "q"}], ids=["shared", "queue"])
def test_how_a_rayjob_is_stopped_depends_on_the_rayjob_and_not_on_the_changed_job(kind: dict[str, Any]):
    plan = plan_for(raw_job(suspend=True), raw_ray_job(**kind, **RUNNING), status=STARTED)

    assert ([found.name for found in plan.delete], plan.apply) == (["job-1"], ())


def test_a_run_whose_suspension_is_refused_is_stopped_by_deletion():
    plan = plan_for(
        raw_job(suspend=True), raw_ray_job(**RUNNING), status=STARTED, apply_error="queue-name is immutable"
    )

    assert ([found.name for found in plan.delete], plan.apply) == (["job-1"], ())


def test_a_job_suspended_between_attempts_starts_no_attempt():
    failed = status_after(raw_job(retries=1), raw_ray_job(**FAILED))

    suspended = plan_for(raw_job(retries=1, suspend=True), status=failed, now=at(9000))

    assert suspended.apply == ()
    assert suspended.status is not None
    assert (suspended.status.state, suspended.status.failed_attempts) == ("Suspended", 1)


def test_a_run_that_succeeds_while_it_is_being_suspended_is_complete():
    assert status_after(raw_job(suspend=True), raw_ray_job(**SUCCEEDED)).state == "Complete"
    assert status_after(raw_job(suspend=True), raw_ray_job(**FAILED)).state == "Failed"


# The end


@pytest.mark.parametrize("ray_status", [SUCCEEDED, FAILED])
def test_a_finished_job_is_left_unchanged(ray_status: dict[str, Any]):
    ended = status_after(raw_job(), raw_ray_job(**ray_status))

    for ray_jobs in ((), (raw_ray_job(**RUNNING),), (raw_ray_job(**FAILED),)):
        assert plan_for(raw_job(), *ray_jobs, status=ended, team=None, now=at(99999)) == Plan()


def test_a_finished_job_is_deleted_after_its_time_to_live():
    job = raw_job(ttlSecondsAfterFinished=60)
    ended = status_after(job, raw_ray_job(**SUCCEEDED), now=at(100))

    assert plan_for(job, status=ended, now=at(159)) == Plan(requeue_at=at(160))
    assert plan_for(job, status=ended, now=at(160)) == Plan(delete_job=True)


@pytest.mark.parametrize(
    "mark",
    [
        {"annotations": {"argocd.argoproj.io/tracking-id": "app:turnmill.dev/AgentTrainingJob:team-a/job"}},
        {"labels": {"kustomize.toolkit.fluxcd.io/name": "jobs"}},
    ],
)
def test_an_expired_job_that_a_gitops_tool_keeps_is_not_deleted_as_it_would_train_again(mark: dict[str, Any]):
    job = raw_job(ttlSecondsAfterFinished=60)
    job["metadata"] |= mark
    ended = status_after(job, raw_ray_job(**SUCCEEDED), now=at(100))

    plan = plan_for(job, raw_ray_job(**SUCCEEDED), status=ended, now=at(160))

    assert not plan.delete_job
    assert plan.requeue_at is None
    assert [found.name for found in plan.delete] == ["job-1"]


def test_a_change_of_an_ended_job_is_observed():
    ended = status_after(raw_job(), raw_ray_job(**SUCCEEDED))
    changed = raw_job()
    changed["metadata"]["generation"] = 2

    after = plan_for(changed, raw_ray_job(**SUCCEEDED), status=ended).status

    assert after == ended.model_copy(update={"observed_generation": 2})
    assert plan_for(changed, raw_ray_job(**SUCCEEDED), status=after) == Plan()


def test_a_job_managed_by_another_controller_is_ignored():
    job = raw_job(managedBy="kueue.x-k8s.io/multikueue")

    assert plan_for(job, raw_ray_job(**RUNNING)) == Plan()


# Deletion


def deleted_job(seconds: float = 0, *, held: bool = True) -> dict[str, Any]:
    job = raw_job()
    job["metadata"] |= {"deletionTimestamp": stamp(at(seconds))}
    if held:
        job["metadata"]["finalizers"] = ["turnmill.dev/clean-up"]
    return job


def test_the_finalizer_is_added_first_if_there_is_something_to_clean_up():
    assert plan_for(raw_job(), team=CLEAN_UP_TEAM).add_finalizer
    assert not plan_for(raw_job(), team=TEAM).add_finalizer


def test_deletion_stops_the_run_then_cleans_the_store_then_removes_the_finalizer():
    running = raw_ray_job(**RUNNING)
    stop = plan_for(deleted_job(), running, team=CLEAN_UP_TEAM)
    assert ([found.name for found in stop.delete], stop.remove_finalizer) == (["job-1"], False)

    running["metadata"]["deletionTimestamp"] = stamp(at(0))
    wait = plan_for(deleted_job(), running, team=CLEAN_UP_TEAM, status=stop.status)
    assert wait == Plan(requeue_at=at(120))

    empty = plan_for(deleted_job(), team=CLEAN_UP_TEAM, status=stop.status)
    (clean_up,) = empty.apply
    assert clean_up["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "clean-up",
        "--run-dir",
        f"/runs/team-a/job-{UID[:8]}",
    ]

    # No event reports the end of the clean-up, so it is polled.
    assert empty.requeue_at == at(2)
    for now, look_again in ((30, 32), (119, 120)):
        unfinished = CleanUpView(finished=False)
        wait = plan_for(deleted_job(), team=CLEAN_UP_TEAM, status=stop.status, clean_up=unfinished, now=at(now))
        assert wait == Plan(requeue_at=at(look_again))
    assert plan_for(deleted_job(), team=CLEAN_UP_TEAM, clean_up=CleanUpView(finished=True)) == Plan(
        remove_finalizer=True
    )


@pytest.mark.parametrize("team", [None, TEAM, CLEAN_UP_TEAM])
def test_the_finalizer_is_removed_after_the_deadline_in_any_state(team: Any):
    assert plan_for(deleted_job(), raw_ray_job(**RUNNING), team=team, now=at(120)).remove_finalizer


def test_a_deleted_job_without_the_finalizer_has_an_empty_plan():
    assert plan_for(deleted_job(held=False), raw_ray_job(**RUNNING)) == Plan()


def test_rayjobs_of_older_attempts_are_deleted():
    plan = plan_for(raw_job(), raw_ray_job(1), raw_ray_job(2, **RUNNING), status=STARTED)

    assert [found.name for found in plan.delete] == ["job-1"]
    assert plan.status is not None
    assert plan.status.attempt == 2


def test_an_attempt_that_gives_way_is_deleted_and_repeated_without_counting_as_failed():
    starting = raw_ray_job(jobDeploymentStatus="Initializing", rayClusterName="job-1-c")

    plan = plan_for(raw_job(), starting, status=STARTED, gives_way_to="team/older", now=at(100))

    found = plan.status
    assert found is not None
    assert (found.state, found.failed_attempts, found.disrupted_attempts) == ("Retrying", 0, 0)
    assert reasons(found)["Running"] == ("False", "GaveWay")
    assert "gave way to the older job team/older" in message(found, "Running")
    assert [deleted.name for deleted in plan.delete] == ["job-1"]
    due = found.next_attempt_time
    assert due is not None
    assert at(160) <= due < at(190)
    assert not plan_for(raw_job(), status=found, now=at(159)).apply
    (ray_job,) = plan_for(raw_job(), status=found, now=due).apply
    assert ray_job["metadata"]["name"] == "job-2"


def test_an_attempt_that_runs_does_not_give_way():
    plan = plan_for(raw_job(), raw_ray_job(**RUNNING), status=STARTED, gives_way_to="team/older")
    assert not plan.delete
