"""The few requests that the operator makes of the API server."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf

from turnmill.core.errors import TurnmillError
from turnmill.jobs.crd import GROUP, PLURAL, VERSION
from turnmill.jobs.job import KIND
from turnmill_operator import metrics
from turnmill_operator.resources import Manifest
from turnmill_operator.views import Key, Raw

FIELD_MANAGER = "turnmill-operator"
REQUEST_SECONDS, CONNECT_SECONDS = 30.0, 10.0
CREDENTIALS_SECONDS = 60.0
PAGE = 250
APPLY = "application/apply-patch+yaml"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where it is found."""

    group_version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, or of all in a namespace, or of all."""
        root = f"/apis/{self.group_version}" if "/" in self.group_version else f"/api/{self.group_version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


JOBS = Resource(f"{GROUP}/{VERSION}", PLURAL)
RAY_JOBS = Resource("ray.io/v1", "rayjobs")
CONFIG_MAPS = Resource("v1", "configmaps")
PODS = Resource("v1", "pods")
EVENTS = Resource("v1", "events")
BATCH_JOBS = Resource("batch/v1", "jobs")
LEASES = Resource("coordination.k8s.io/v1", "leases")
BY_KIND = {"RayJob": RAY_JOBS, "Job": BATCH_JOBS, "Event": EVENTS}


class ApiError(TurnmillError):
    """The API server refused a request, or could not be reached (code 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message

    @property
    def reason(self) -> str:
        """One word of a closed set, for metrics."""
        if self.code == 0:
            return "unreachable"
        if self.code >= 500 or self.code == 429:
            return "server"
        return {409: "conflict", 403: "forbidden", 401: "forbidden", 400: "invalid", 422: "invalid"}.get(
            self.code, "other"
        )


def log_in() -> kopf.ConnectionInfo:
    """The credentials of the pod, or of KUBECONFIG."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ApiError(0, "There is no API server to talk to: run in a pod, or set KUBECONFIG.")
    return found


class Api:
    """A client whose every request ends in time and is counted."""

    def __init__(self, credentials: Callable[[], kopf.ConnectionInfo] = log_in) -> None:
        self._credentials = credentials
        self._login = credentials()
        self._login_at = time.monotonic()
        self._session = aiohttp.ClientSession(
            base_url=self._login.server,
            connector=aiohttp.TCPConnector(ssl=self._login.as_ssl_context(), limit=16),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS),
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        """An object; None where there is none."""
        try:
            return await self._json("GET", resource, resource.path(namespace, name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Raw]:
        """Objects page by page; of large ones perhaps the metadata alone."""
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        headers = {"Accept": METADATA_ONLY} if metadata_only else {}
        while True:
            given = {name: value for name, value in query.items() if value}
            page = await self._json("GET", resource, resource.path(namespace), query=given, headers=headers)
            for item in page.get("items") or ():
                yield item
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def apply(self, manifest: Manifest) -> Raw:
        """Server-side apply of one of our own objects."""
        metadata = manifest["metadata"]
        resource = BY_KIND[manifest["kind"]]
        return await self._apply(resource, resource.path(metadata["namespace"], metadata["name"]), manifest)

    async def apply_job(self, key: Key, uid: str, version: int, **fields: Any) -> Raw:
        """Server-side apply of a part of a job that is ours: `status`, or `finalizers` of its metadata.

        A conflict where the job is another by now, or has changed since it was read.
        """
        metadata = {"name": key.name, "namespace": key.namespace, "uid": uid, "resourceVersion": str(version)}
        subresource = "status" if "status" in fields else None
        if "finalizers" in fields:
            metadata |= {"finalizers": fields.pop("finalizers")}
        body = {"apiVersion": JOBS.group_version, "kind": KIND, "metadata": metadata, **fields}
        return await self._apply(JOBS, JOBS.path(key.namespace, key.name, subresource), body)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str | None = None, policy: str = "Background"
    ) -> None:
        """Delete an object; does nothing if it is gone, or if a namesake has taken its place."""
        body: dict[str, Any] = {"propagationPolicy": policy}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", resource, resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def replace(self, resource: Resource, namespace: str, manifest: Manifest) -> Raw:
        """Create, or update exactly the version that was read; a conflict where another was faster."""
        if "resourceVersion" in manifest["metadata"]:
            path = resource.path(namespace, manifest["metadata"]["name"])
            return await self._json("PUT", resource, path, body=manifest)
        return await self._json("POST", resource, resource.path(namespace), body=manifest)

    async def text(self, path: str) -> str | None:
        """What lies at a path that is no object; None where nothing does."""
        async with self._request("GET", "discovery", path) as response:
            if response.status == 404:
                return None
            await self._check(response, "discovery")
            return await response.text()

    async def _apply(self, resource: Resource, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._json(
            "PATCH",
            resource,
            path,
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=body,
            headers={"Content-Type": APPLY},
        )

    async def _json(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Raw:
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self._request(verb, resource.plural, path, params=query, data=data, headers=sent) as response:
            await self._check(response, resource.plural)
            found: Raw = json.loads(await response.read())
            return found

    @asynccontextmanager
    async def _request(
        self, verb: str, resource: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        code = "none"
        try:
            sent = {**(headers or {}), **self._fresh_login().as_http_headers()}
            async with self._session.request(verb, path, headers=sent, **options) as response:
                code = str(response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"The API server cannot be reached: {error or type(error).__name__}") from error
        finally:
            metrics.API_REQUESTS.labels(verb.lower(), resource, code).inc()

    def _fresh_login(self) -> kopf.ConnectionInfo:
        """The credentials; those of a pod change every hour."""
        if time.monotonic() - self._login_at > CREDENTIALS_SECONDS:
            self._login, self._login_at = self._credentials(), time.monotonic()
        return self._login

    async def _check(self, response: aiohttp.ClientResponse, resource: str) -> None:
        if response.status < 400:
            return
        if response.status == 409:
            metrics.CONFLICTS.labels(resource).inc()
        text = await response.text()
        try:
            message = json.loads(text).get("message", text)
        except ValueError:
            message = text
        raise ApiError(response.status, " ".join(str(message).split())[:1000])
