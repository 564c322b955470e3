"""Kills during a run, one at a time: what dies comes back, and the run ends complete."""

import pytest

from turnmill.testing.kubernetes import wait_for
from turnmill.testing.team_jobs import OPERATOR_PODS, Team
from turnmill.testing.team_release import STORE, TOOL_SERVER_PODS

pytestmark = pytest.mark.timeout(1800)

SHORT_VALIDATION = {"episodes": 32}
RUN_SECONDS = 1200.0


def test_a_run_outlives_its_operator_and_its_ray_head(team: Team):
    job = team.submit(
        "babyai-goto-cpu.yaml",
        "babyai",
        training__steps=6,
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
    steps = [row["step"] for row in job.metrics() if "timing_s/step" in row]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_no_turn_is_lost_with_a_tool_server_or_the_store(team: Team):
    job = team.submit("tool-arithmetic-cpu.yaml", "tools", training__steps=10, training__validation=SHORT_VALIDATION)
    job.wait_for_step(1, seconds=RUN_SECONDS)

    team.kill(TOOL_SERVER_PODS)
    job.wait_for_step(4, seconds=RUN_SECONDS)
    team.kill(f"statefulset.kubernetes.io/pod-name={STORE}-0")
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert job.summary()["failures"] == {}
    assert job.summary()["steps"] == 10


def test_rollouts_carry_on_when_one_of_their_workers_is_killed(team: Team):
    job = team.submit(
        "babyai-goto-separate-cpu.yaml",
        "separate",
        training__steps=5,
        training__checkpointEvery=1,
        training__validation=SHORT_VALIDATION,
        resources__rollout={"accelerator": "A40", "replicas": 2},
        retries=2,
    )
    job.wait_for_step(2, seconds=RUN_SECONDS)

    team.kill(f"{job.labels},ray.io/group=a40", at_most=1)
    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.resource["status"]["attempt"] == 1
    assert [row["step"] for row in job.metrics() if "timing_s/step" in row] == [1, 2, 3, 4, 5]
