"""The status that KubeRay would write into RayJobs if there were Ray clusters."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from support.ray_jobs import stamp
from turnmill_operator.api import JOBS, RAY_JOBS, ApiClient

NO_CLUSTERS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-clusters"},
    "spec": {"hard": {"count/rayclusters.ray.io": "0"}},
}
"""A quota that prevents KubeRay from creating Ray clusters."""


class RayJobStatuses:
    """Writes the status of a namespace's RayJobs, as another field manager."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def ray_jobs(self) -> list[Any]:
        return [found async for found in self._api.list(RAY_JOBS, self._namespace)]

    async def jobs(self) -> list[Any]:
        return [found async for found in self._api.list(JOBS, self._namespace)]

    async def write(self, ray_job: Mapping[str, Any], **status: Any) -> None:
        path = RAY_JOBS.path(self._namespace, ray_job["metadata"]["name"], "status")
        async with self._api._request(
            "PATCH",
            "rayjobs",
            path,
            data=json.dumps({"status": status}).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
        ) as response:
            assert response.status in (200, 404, 409), await response.text()

    async def start(self, ray_job: Mapping[str, Any]) -> None:
        """Write the status of a run that has started."""
        await self.write(
            ray_job, jobStatus="RUNNING", jobDeploymentStatus="Running", rayClusterStatus={"state": "ready"}
        )

    async def end(self, ray_job: Mapping[str, Any], *, succeeded: bool) -> None:
        """Write the status of a run that has ended."""
        now = stamp(datetime.now(UTC))
        status = "SUCCEEDED" if succeeded else "FAILED"
        deployment = "Complete" if succeeded else "Failed"
        message = "" if succeeded else "Job entrypoint command failed with exit code 1"
        await self.write(ray_job, jobStatus=status, jobDeploymentStatus=deployment, message=message, endTime=now)


@asynccontextmanager
async def ray_job_statuses(namespace: str) -> AsyncIterator[RayJobStatuses]:
    """Yield the writer of a namespace's statuses, with the credentials of KUBECONFIG."""
    api = ApiClient()
    try:
        yield RayJobStatuses(api, namespace)
    finally:
        await api.close()
