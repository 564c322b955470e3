"""The operator's client against a real API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.api_server import ApiServer
from support.ray_jobs import raw_job
from turnmill_operator.api import JOBS, ApiClient

KIND, NAME, NAMESPACE = "agenttrainingjob", "deleted", "team-a"


@pytest.fixture
async def client(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiClient]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    opened = ApiClient()
    yield opened
    await opened.close()


@pytest.fixture
def job(server: ApiServer) -> Any:
    """A job that has been read, and perhaps changed since."""
    manifest = raw_job(NAME)
    manifest["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    server.apply(manifest)
    yield server.get(KIND, NAME, NAMESPACE)
    server.kubectl("delete", KIND, NAME, f"--namespace={NAMESPACE}", "--ignore-not-found")


async def test_a_job_is_not_deleted_in_the_place_of_another_of_its_name(server, client, job):
    await client.delete(JOBS, NAMESPACE, NAME, uid="another")

    assert server.get(KIND, NAME, NAMESPACE) is not None


async def test_a_job_that_was_changed_since_it_was_read_is_not_deleted(server, client, job):
    server.kubectl("label", KIND, NAME, f"--namespace={NAMESPACE}", "kept=true")

    version = int(job["metadata"]["resourceVersion"])
    await client.delete(JOBS, NAMESPACE, NAME, uid=job["metadata"]["uid"], version=version)

    assert server.get(KIND, NAME, NAMESPACE) is not None


async def test_a_job_that_is_as_it_was_read_is_deleted(server, client, job):
    metadata = job["metadata"]

    await client.delete(JOBS, NAMESPACE, NAME, uid=metadata["uid"], version=int(metadata["resourceVersion"]))

    assert server.get(KIND, NAME, NAMESPACE) is None
