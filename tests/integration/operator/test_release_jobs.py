"""Jobs lose the operator's finalizer once it is uninstalled, also what an ending replica adds meanwhile."""

import json
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnmill_operator import release_jobs
from turnmill_operator.api import ApiClient, ApiError
from turnmill_operator.views import FINALIZER, ObjectKey


class Server:
    """An API server with jobs, which loses a job's finalizers when they are applied."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.refusal = 0
        """Status of every answer; 0 for none that refuses."""

        self.conflicts = 0
        self.adds_again = 0
        """How often an operator that is still ending gives the first job its finalizer again."""

        self.lease: dict[str, Any] | None = {"metadata": {"uid": "lease", "resourceVersion": "1"}, "spec": {}}
        self.renewals = 0
        """How often a replica still renews the Lease."""

    def add(self, namespace: str, name: str, *finalizers: str) -> None:
        metadata = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "7"}
        self.jobs[f"{namespace}/{name}"] = {"metadata": {**metadata, "finalizers": list(finalizers)}}

    def finalizers(self, key: str) -> list[str]:
        found: list[str] = self.jobs[key]["metadata"]["finalizers"]
        return found

    async def answer(self, request: web.Request) -> web.Response:
        if self.refusal:
            return web.json_response({"message": "no jobs for you"}, status=self.refusal)
        parts = request.path.split("/")
        if "leases" in parts:
            return await self.answer_of_lease(request)
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
        if request.method == "GET":
            found = [job for job in self.jobs.values() if namespace in (None, job["metadata"]["namespace"])]
            return web.json_response({"metadata": {}, "items": found})
        applied = json.loads(await request.read())["metadata"]
        if self.conflicts:
            self.conflicts -= 1
            return web.json_response({"message": "the object has been modified"}, status=409)
        assert applied["resourceVersion"] == "7"
        job = self.jobs[f"{namespace}/{parts[-1]}"]
        # Those of others stay.
        kept = [finalizer for finalizer in job["metadata"]["finalizers"] if finalizer != FINALIZER]
        job["metadata"]["finalizers"] = kept + [FINALIZER] * (self.adds_again > 0)
        self.adds_again -= 1
        return web.json_response(job)

    async def answer_of_lease(self, request: web.Request) -> web.Response:
        if self.lease is None:
            return web.json_response({"message": "not found"}, status=404)
        metadata = self.lease["metadata"]
        if request.method == "DELETE":
            assert json.loads(await request.read())["preconditions"] == dict(metadata)
            self.lease = None
            return web.json_response({})
        if self.renewals:
            self.renewals -= 1
            metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return web.json_response(self.lease)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(release_jobs, "PASS_SECONDS", 0.01)
    monkeypatch.setattr(release_jobs, "QUIET_SECONDS", 0.2)
    made = Server()
    made.add("team-a", "held", FINALIZER, "example.com/other")
    made.add("team-a", "free")
    made.add("team-b", "held", FINALIZER)
    return made


@pytest.fixture
async def api(server: Server) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as listening:
        client = ApiClient(lambda: kopf.ConnectionInfo(server=str(listening.make_url("/")).rstrip("/")))
        yield client
        await client.close()


async def test_jobs_of_the_cluster_lose_the_finalizer_and_keep_those_of_others(api, server):
    released = await release_jobs.release_jobs(api, [])

    assert released == {ObjectKey("team-a", "held"), ObjectKey("team-b", "held")}
    assert server.finalizers("team-a/held") == ["example.com/other"]
    assert server.finalizers("team-b/held") == []


async def test_jobs_of_other_namespaces_are_left_alone(api, server):
    assert await release_jobs.release_jobs(api, ["team-b"]) == {ObjectKey("team-b", "held")}
    assert server.finalizers("team-a/held") == [FINALIZER, "example.com/other"]


async def test_a_job_that_has_changed_or_gets_the_finalizer_once_more_is_released_in_the_next_pass(api, server):
    server.conflicts, server.adds_again = 1, 2

    await release_jobs.release_jobs(api, [])

    assert FINALIZER not in server.finalizers("team-a/held") + server.finalizers("team-b/held")


async def test_jobs_that_another_operator_serves_end_it_with_their_names(api, server, monkeypatch):
    monkeypatch.setattr(release_jobs, "MAX_SECONDS", 0.1)
    server.adds_again = 10**9

    with pytest.raises(TimeoutError, match=r"Another operator serves these jobs: team-a/held, team-b/held\."):
        await release_jobs.release_jobs(api, [])


async def test_nothing_is_to_do_once_the_definition_is_gone(api, server):
    server.refusal = 404

    assert await release_jobs.release_jobs(api, []) == set()


async def test_a_refusal_is_raised(api, server):
    server.refusal = 403

    with pytest.raises(ApiError, match="403: no jobs for you"):
        await release_jobs.release_jobs(api, [])


async def test_the_lease_that_the_operator_released_is_deleted(api, server):
    assert await release_jobs.delete_lease(api, "turnmill")
    assert server.lease is None


async def test_the_lease_of_a_replica_that_was_killed_is_deleted_once_it_has_expired(api, server):
    server.lease["spec"] = {"holderIdentity": "killed", "leaseDurationSeconds": 0.2}
    server.renewals = 3

    assert await release_jobs.delete_lease(api, "turnmill")
    assert server.renewals == 0


async def test_the_lease_of_another_operator_is_left(api, server, monkeypatch):
    monkeypatch.setattr(release_jobs, "LEASE_SECONDS", 0.2)
    server.lease["spec"] = {"holderIdentity": "other"}
    server.renewals = 10**9

    assert not await release_jobs.delete_lease(api, "turnmill")
    assert server.lease is not None
