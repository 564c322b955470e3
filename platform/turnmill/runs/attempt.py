"""One attempt at a run in a cluster, read from the environment variables that the operator sets."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, parse_job

JOB, NUMBER, RUN_DIR, METRICS_PORT = (
    "TURNMILL_JOB",
    "TURNMILL_ATTEMPT",
    "TURNMILL_RUN_DIR",
    "TURNMILL_METRICS_PORT",
)
STORE_URL, TOOL_SERVER_URL, DEVICE = "TURNMILL_STORE_URL", "TURNMILL_TOOL_SERVER_URL", "TURNMILL_DEVICE"
DEFAULT_METRICS_PORT = 9464


@dataclass(frozen=True, slots=True)
class Attempt:
    """Job, number and run folder of an attempt, and addresses of its services."""

    job: AgentTrainingJob
    number: int
    run_dir: Path
    metrics_port: int = DEFAULT_METRICS_PORT
    store_url: str | None = None
    """Address of the trajectory store, without its password."""

    tool_server_url: str | None = None
    """Address of the team's tool servers, for jobs that name none."""

    device: str | None = None
    """Device of the pods that train, for jobs with device `auto`, as this process may see no GPU itself."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the attempt from environment variables. Raises SettingsError, or JobError for the job."""
        return cls(
            job=_job(_required(environment, JOB)),
            number=_number(environment, NUMBER, least=1),
            run_dir=Path(_required(environment, RUN_DIR)),
            metrics_port=_number(environment, METRICS_PORT, least=0, default=DEFAULT_METRICS_PORT),
            store_url=environment.get(STORE_URL) or None,
            tool_server_url=environment.get(TOOL_SERVER_URL) or None,
            device=environment.get(DEVICE) or None,
        )


def _job(text: str) -> AgentTrainingJob:
    try:
        resource = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{JOB} is no AgentTrainingJob as JSON: {error}.") from error
    return parse_job(resource)


def _required(environment: Mapping[str, str], name: str) -> str:
    if value := environment.get(name):
        return value
    raise SettingsError(
        f"{name} is not set: `turnmill run --ray auto` is started by the operator. "
        "On one machine, `turnmill run JOB.yaml` starts a Ray cluster of its own."
    )


def _number(environment: Mapping[str, str], name: str, *, least: int, default: int | None = None) -> int:
    text = environment.get(name) or (str(default) if default is not None else _required(environment, name))
    if not text.isdecimal() or int(text) < least:
        raise SettingsError(f"{name} ({text!r}) must be a whole number, {least} or greater.")
    return int(text)
