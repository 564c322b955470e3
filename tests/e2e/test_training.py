"""From `kubectl apply` to a trained policy: the job's status tells it, and nothing stays when the job goes."""

import pytest

from turnmill.testing.kubernetes import wait_for
from turnmill.testing.team_jobs import Team

pytestmark = pytest.mark.timeout(1500)

SHORT_VALIDATION = {"episodes": 32}
RUN_SECONDS = 900.0


def test_the_babyai_twin_learns_to_its_end_and_its_status_shows_how(team: Team):
    job = team.submit("babyai-goto-cpu.yaml", "babyai", training__steps=6, training__validation=SHORT_VALIDATION)

    rewards = job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.progress["step"] == job.progress["steps"] == 6
    assert rewards[-1] > rewards[0]
    assert job.progress["infraFailedRatio"] == 0
    assert job.resource["status"]["attempt"] == 1
    assert not team.pods(job.labels)


def test_a_job_with_tools_learns_with_the_team_s_tool_servers_and_leaves_no_key(team: Team):
    job = team.submit("tool-arithmetic-cpu.yaml", "tools", training__steps=4, training__validation=SHORT_VALIDATION)

    job.wait_until_complete(seconds=RUN_SECONDS)

    assert job.summary()["failures"] == {}
    assert team.store_keys()
    team.namespace.delete("agenttrainingjob", job.name)
    wait_for("store without keys of the run", lambda: not team.store_keys(), seconds=120)
    for kind in ("rayjobs", "rayclusters", "jobs", "pods", "services"):
        assert team.namespace.list(kind, job.labels) == [], kind


def test_rollout_and_learning_land_on_the_pods_of_their_accelerators(team: Team):
    job = team.submit(
        "babyai-goto-separate-cpu.yaml", "separate", training__steps=3, training__validation=SHORT_VALIDATION
    )
    job.wait_for_step(1, seconds=RUN_SECONDS)

    processes = {
        group: team.namespace.run_in(job.pod(group), "sh", "-c", "cat /proc/[0-9]*/comm") for group in ("h100", "a40")
    }

    # The kernel keeps fifteen characters of a name.
    learner, engine = "ray::WorkerDict", "ray::vLLMHttpSe"
    assert learner in processes["h100"]
    assert engine not in processes["h100"]
    assert engine in processes["a40"]
    assert learner not in processes["a40"]
    job.wait_until_complete(seconds=RUN_SECONDS)
