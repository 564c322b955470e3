import json
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.errors import SettingsError
from turnmill.jobs import JobError
from turnmill.runs.attempt import Attempt

RESOURCE = {
    "apiVersion": "turnmill.dev/v1alpha1",
    "kind": "AgentTrainingJob",
    "metadata": {"name": "babyai", "namespace": "team-a", "uid": "1a2b3c4d-0000", "resourceVersion": "7"},
    "spec": {
        "model": {"warmStart": {}},
        "agent": {"type": "verlog", "prompt": "compact"},
        "environment": {"name": "babyai", "task": "GoToObj", "count": 32},
        "training": {"steps": 3, "turnsPerStep": 256},
    },
    "status": {"attempt": 1},
}


def environment(**changes: Any) -> dict[str, str]:
    return {
        "TURNMILL_JOB": json.dumps(RESOURCE),
        "TURNMILL_ATTEMPT": "2",
        "TURNMILL_RUN_DIR": "/runs/team-a/babyai-1a2b3c4d",
        **changes,
    }


def test_an_attempt_is_read_from_the_environment_variables_of_the_operator():
    attempt = Attempt.from_environment(
        environment(TURNMILL_METRICS_PORT="9465", TURNMILL_STORE_URL="redis://store:6379", TURNMILL_TOOL_SERVER_URL="")
    )

    assert attempt.job.metadata.name == "babyai"
    assert attempt.number == 2
    assert attempt.run_dir == Path("/runs/team-a/babyai-1a2b3c4d")
    assert attempt.metrics_port == 9465
    assert attempt.store_url == "redis://store:6379"
    assert attempt.tool_server_url is None


def test_without_an_operator_the_error_names_turnmill_run():
    with pytest.raises(SettingsError, match=r"TURNMILL_JOB is not set.*`turnmill run JOB.yaml`"):
        Attempt.from_environment({})


@pytest.mark.parametrize("number", ["0", "-1", "first", "1.5"])
def test_an_attempt_number_that_is_not_a_positive_integer_is_refused(number: str):
    with pytest.raises(SettingsError, match=rf"TURNMILL_ATTEMPT \('{number}'\) must be a whole number, 1 or greater"):
        Attempt.from_environment(environment(TURNMILL_ATTEMPT=number))


def test_an_attempt_with_an_invalid_job_is_refused():
    broken = RESOURCE | {"spec": RESOURCE["spec"] | {"training": {"steps": -1, "turnsPerStep": 256}}}

    with pytest.raises(JobError, match=r"spec\.training\.steps"):
        Attempt.from_environment(environment(TURNMILL_JOB=json.dumps(broken)))


def test_a_job_that_is_not_json_is_refused():
    with pytest.raises(SettingsError, match="TURNMILL_JOB is no AgentTrainingJob as JSON"):
        Attempt.from_environment(environment(TURNMILL_JOB="{"))
