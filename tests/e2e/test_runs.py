"""From `kubectl apply` to a trained policy, undisturbed and through kills: what dies comes back, and nothing stays.

A status may be half a minute old, in which a run does five steps: runs have more of them after the last kill.
"""

import pytest

from turnmill.testing.kubernetes import wait_for
from turnmill.testing.team_jobs import OPERATOR_PODS, SubmittedJob, Team
from turnmill.testing.team_release import STORE, TOOL_SERVER_PODS

pytestmark = pytest.mark.timeout(1800)

SHORT_VALIDATION = {"episodes": 32}
RUN_SECONDS = 1200.0
# The kernel keeps fifteen characters of a name.
LEARNER, ENGINE = "ray::WorkerDict", "ray::vLLMHttpSe"


def processes(job: SubmittedJob, group: str) -> str:
    """What runs in the pods of a worker group, by name."""
    pods = job.team.pods(f"{job.labels},ray.io/group={group}")
    # One may end while it is looked at.
    look = "cat /proc/[0-9]*/comm 2>/dev/null || true"
    return "".join(job.team.namespace.run_in(pod, "sh", "-c", look) for pod in pods)


def learned_steps(job: SubmittedJob) -> list[int]:
    """The steps that the record shows."""
    return [row["step"] for row in job.metrics() if "timing_s/step" in row]


def test_the_babyai_twin_learns_to_its_end_and_its_status_shows_how(team: Team):
    job = team.submit("babyai-goto-cpu.yaml", "babyai", training__steps=6, training__validation=SHORT_VALIDATION)

    rewards = job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.progress["step"] == job.progress["steps"] == 6
    assert rewards[-1] > rewards[0]
    assert job.progress["infraFailedRatio"] == 0
    assert job.resource["status"]["attempt"] == 1
    assert not team.pods(job.labels)


def test_a_run_outlives_its_operator_and_its_ray_head(team: Team):
    job = team.submit(
        "babyai-goto-cpu.yaml",
        "beheaded",
        training__steps=14,
        training__checkpointEvery=1,
        training__validation=SHORT_VALIDATION,
        retries=2,
    )
    job.wait_for_step(1, seconds=RUN_SECONDS)

    operators = team.kill(OPERATOR_PODS)
    wait_for("operators", lambda: len(set(team.pods(OPERATOR_PODS)) - set(operators)) == 2, seconds=60)
    job.wait_for_step(2, seconds=RUN_SECONDS)
    assert job.resource["status"]["attempt"] == 1

    team.kill(f"{job.labels},ray.io/node-type=head")
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 2
    assert learned_steps(job) == list(range(1, 15))


def test_rollout_has_pods_of_its_own_one_of_which_may_go_and_the_loss_of_all_repeats_no_step(team: Team):
    job = team.submit(
        "babyai-goto-separate-cpu.yaml",
        "separate",
        training__steps=16,
        training__checkpointEvery=1,
        training__validation=SHORT_VALIDATION,
        resources__rollout__replicas=2,
        retries=2,
    )
    job.wait_for_step(1, seconds=RUN_SECONDS)

    learning, rollout = processes(job, "h100"), processes(job, "a40")
    assert LEARNER in learning
    assert ENGINE not in learning
    assert ENGINE in rollout
    assert LEARNER not in rollout

    rollout_pods = f"{job.labels},ray.io/group=a40"
    team.kill(rollout_pods, at_most=1)
    # Rollout is one step ahead: the last of three steps comes from the engine that is left.
    goal = learned_steps(job)[-1] + 3
    wait_for(f"step {goal} by one engine", lambda: learned_steps(job)[-1] >= goal, seconds=RUN_SECONDS)
    assert job.resource["status"]["attempt"] == 1

    # No engine is left: the next attempt carries on from the checkpoint.
    team.kill(rollout_pods)
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 2
    assert learned_steps(job) == list(range(1, 17))


def test_no_turn_is_lost_with_a_tool_server_or_the_store_and_a_deleted_job_leaves_nothing(team: Team):
    job = team.submit("tool-arithmetic-cpu.yaml", "tools", training__steps=16, training__validation=SHORT_VALIDATION)
    job.wait_for_step(1, seconds=RUN_SECONDS)

    team.kill(TOOL_SERVER_PODS)
    job.wait_for_step(4, seconds=RUN_SECONDS)
    team.kill(f"statefulset.kubernetes.io/pod-name={STORE}-0")
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert job.summary()["failures"] == {}
    assert job.summary()["steps"] == 16
    assert team.store_keys()
    team.namespace.delete("agenttrainingjob", job.name)
    wait_for("store without keys of the run", lambda: not team.store_keys(), seconds=120)
    for kind in ("rayjobs", "rayclusters", "jobs", "pods", "services"):
        assert team.namespace.list(kind, job.labels) == [], kind
