"""Client of the Kubernetes API server, with the few requests that the operator needs."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import kopf

from turnmill.core.errors import TurnmillError
from turnmill.jobs.crd import GROUP, PLURAL, VERSION
from turnmill.jobs.job import KIND
from turnmill_operator import metrics
from turnmill_operator.resources import Manifest
from turnmill_operator.views import ObjectKey, RawObject

FIELD_MANAGER = "turnmill-operator"
REQUEST_SECONDS, CONNECT_SECONDS = 30.0, 10.0
CREDENTIALS_SECONDS = 60.0
PAGE_SIZE = 250
MAX_RETRY_AFTER_SECONDS = 60.0
APPLY_CONTENT_TYPE = "application/apply-patch+yaml"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and its place in the API."""

    group_version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of one object, of all objects in a namespace, or of all objects."""
        root = f"/apis/{self.group_version}" if "/" in self.group_version else f"/api/{self.group_version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


JOBS = Resource(f"{GROUP}/{VERSION}", PLURAL)
RAY_JOBS = Resource("ray.io/v1", "rayjobs")
CONFIG_MAPS = Resource("v1", "configmaps")
PODS = Resource("v1", "pods")
EVENTS = Resource("v1", "events")
BATCH_JOBS = Resource("batch/v1", "jobs")
# Newer releases of Kueue serve the first of these versions, older ones the second.
WORKLOADS = tuple(Resource(f"kueue.x-k8s.io/{version}", "workloads") for version in ("v1beta2", "v1beta1"))
LEASES = Resource("coordination.k8s.io/v1", "leases")
RESOURCES_BY_KIND = {"RayJob": RAY_JOBS, "Job": BATCH_JOBS, "Event": EVENTS}


class ApiError(TurnmillError):
    """The API server refused a request, or could not be reached (code 0)."""

    def __init__(self, code: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        """Seconds that an overloaded API server asks to be left alone."""

    @property
    def reason(self) -> str:
        """The cause as one word of a closed set, for metrics."""
        if self.code == 0:
            return "unreachable"
        if self.code >= 500 or self.code == 429:
            return "server"
        return {409: "conflict", 403: "forbidden", 401: "forbidden", 400: "invalid", 422: "invalid"}.get(
            self.code, "other"
        )


def log_in() -> kopf.ConnectionInfo:
    """Return the credentials of the pod, or of KUBECONFIG."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ApiError(0, "No credentials for an API server were found: run in a pod, or set KUBECONFIG.")
    return found


class ApiClient:
    """A client whose requests have a timeout and are counted."""

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
        """Close the connections."""
        await self._session.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> RawObject | None:
        """Return an object; None if there is none."""
        try:
            return await self._request_json("GET", resource, resource.path(namespace, name))
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
    ) -> AsyncIterator[RawObject]:
        """Yield objects, fetched page by page; with `metadata_only`, only their metadata."""
        query = {"limit": str(PAGE_SIZE), "labelSelector": labels, "fieldSelector": fields}
        headers = {"Accept": METADATA_ONLY} if metadata_only else {}
        while True:
            params = {name: value for name, value in query.items() if value}
            page = await self._request_json("GET", resource, resource.path(namespace), query=params, headers=headers)
            for item in page.get("items") or ():
                yield item
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def apply(self, manifest: Manifest) -> RawObject:
        """Server-side apply one of the operator's own objects."""
        metadata = manifest["metadata"]
        resource = RESOURCES_BY_KIND[manifest["kind"]]
        return await self._apply(resource, resource.path(metadata["namespace"], metadata["name"]), manifest)

    async def apply_job(self, key: ObjectKey, uid: str, version: int, **fields: object) -> RawObject:
        """Server-side apply the operator's part of a job: its `status`, or the `finalizers` of its metadata.

        Raises a conflict if the job was replaced or has changed since it was read.
        """
        metadata: Manifest = {"name": key.name, "namespace": key.namespace, "uid": uid, "resourceVersion": str(version)}
        subresource = "status" if "status" in fields else None
        if "finalizers" in fields:
            metadata |= {"finalizers": fields.pop("finalizers")}
        body = {"apiVersion": JOBS.group_version, "kind": KIND, "metadata": metadata, **fields}
        return await self._apply(JOBS, JOBS.path(key.namespace, key.name, subresource), body)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        version: int | None = None,
        policy: str = "Background",
    ) -> None:
        """Delete an object; does nothing if it is gone, if another has its name, or if its `version` has changed."""
        preconditions = {"uid": uid} | ({} if version is None else {"resourceVersion": str(version)})
        body: Manifest = {"propagationPolicy": policy, "preconditions": preconditions}
        try:
            await self._request_json("DELETE", resource, resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def replace(self, resource: Resource, namespace: str, manifest: Manifest) -> RawObject:
        """Create an object, or update it; raises a conflict if it has changed since it was read."""
        if "resourceVersion" in manifest["metadata"]:
            path = resource.path(namespace, manifest["metadata"]["name"])
            return await self._request_json("PUT", resource, path, body=manifest)
        return await self._request_json("POST", resource, resource.path(namespace), body=manifest)

    async def get_text(self, path: str) -> str | None:
        """Return the text at a path that is not an object's; None if there is none."""
        async with self._request("GET", "discovery", path) as response:
            if response.status == 404:
                return None
            await self._check(response, "discovery")
            return await response.text()

    async def _apply(self, resource: Resource, path: str, body: Mapping[str, object]) -> RawObject:
        return await self._request_json(
            "PATCH",
            resource,
            path,
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=body,
            headers={"Content-Type": APPLY_CONTENT_TYPE},
        )

    async def _request_json(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RawObject:
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self._request(verb, resource.plural, path, params=query, data=data, headers=sent) as response:
            await self._check(response, resource.plural)
            found: RawObject = json.loads(await response.read())
            return found

    @asynccontextmanager
    async def _request(
        self,
        verb: str,
        resource: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        code = "none"
        try:
            sent = {**(headers or {}), **self._fresh_login().as_http_headers()}
            async with self._session.request(verb, path, params=params, data=data, headers=sent) as response:
                code = str(response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"The API server cannot be reached: {error or type(error).__name__}") from error
        finally:
            metrics.API_REQUESTS.labels(verb.lower(), resource, code).inc()

    def _fresh_login(self) -> kopf.ConnectionInfo:
        """Return the credentials, refreshed from time to time: those of a pod change every hour."""
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
        raise ApiError(response.status, " ".join(str(message).split())[:1000], _retry_after(response))


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """Return the seconds of the header `Retry-After`; 0 without one that the API server would send."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER_SECONDS) if text.isdecimal() else 0.0
