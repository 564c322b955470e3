"""Fixtures of the tests on a cluster, which are skipped without one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kubernetes import Namespace, temporary_namespace, why_no_cluster
from support.team_jobs import Team, operated_team

HERE = Path(__file__).parent
PREFIX = os.environ.get("TURNMILL_E2E_PREFIX", "e2e")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = why_no_cluster()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def prefix() -> str:
    """The beginning of every namespace's name."""
    return PREFIX


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A fresh namespace that admits restricted pods only."""
    with temporary_namespace(PREFIX, labels=RESTRICTED) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """An operator and a team's namespace for the jobs of one module; engines report metrics to Ray, as on GPUs."""
    values = {"trainer.env": [{"name": "VLLM_PLUGINS", "value": "ray"}]}
    with temporary_namespace(PREFIX, labels=RESTRICTED) as fresh, operated_team(fresh, values) as team:
        yield team
