"""The API server of a kubeconfig's context, with the few requests that the commands need."""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from turnmill.cli.cluster.resource import Resource
from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError, TurnmillError
from turnmill.jobs.crd import GROUP, PLURAL, VERSION

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

JOBS = f"{GROUP}/{VERSION}/{PLURAL}"
PODS, EVENTS, CONFIG_MAPS = "v1/pods", "v1/events", "v1/configmaps"

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE_PATCH = "application/merge-patch+json"


class CommandStream(Protocol):
    """The client's connection to a command in a container, whose output is read as bytes."""

    returncode: int | None

    def is_open(self) -> bool: ...
    def update(self, timeout: float) -> None: ...
    def peek_stdout(self) -> bytes: ...
    def read_stdout(self, timeout: float) -> bytes: ...
    def peek_stderr(self) -> bytes: ...
    def read_stderr(self, timeout: float) -> bytes: ...
    def close(self) -> None: ...


class PortForward(Protocol):
    """The client's connection to ports of a pod."""

    def socket(self, port_number: int) -> socket.socket: ...


Opened = TypeVar("Opened", CommandStream, PortForward)


class ClusterError(TurnmillError):
    """The API server refused a request, or cannot be reached (code 0)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    @property
    def passes(self) -> bool:
        """True if the same request may succeed later, as after a restart of the API server."""
        return self.code in (0, 429) or self.code >= 500


class Cluster:
    """The API server of a context, and one namespace of it."""

    def __init__(self, api: "ApiClient", namespace: str) -> None:
        self._api = api
        # `stream` and `portforward` of the client replace a method of it while they connect.
        self._connecting = threading.Lock()
        self.namespace = namespace

    @classmethod
    def connect(cls, context: str | None = None, namespace: str | None = None) -> Self:
        """Read the kubeconfig as kubectl does. Raises SettingsError without the client, the file or the context."""
        with needs_extra("cluster", "A command for jobs in a cluster"):
            from kubernetes import config
        file = _kubeconfig()
        try:
            contexts, current = config.list_kube_config_contexts(file)
            chosen = next((found for found in contexts if found["name"] == context), None) if context else current
            if chosen is None:
                names = ", ".join(found["name"] for found in contexts)
                raise SettingsError(f"--context {context}: the kubeconfig has no such context. It has: {names}.")
            api = config.new_client_from_config(file, context=chosen["name"])
        except config.ConfigException as error:
            raise SettingsError(
                f"The kubeconfig {file} cannot be used: {error} Set KUBECONFIG to a file that kubectl can use."
            ) from error
        api.configuration.retries = False
        return cls(api, namespace or chosen["context"].get("namespace") or "default")

    # Objects

    def get(self, kind: str, name: str) -> Resource:
        """Return an object."""
        return self._request("GET", self._path(kind, name))

    def list(self, kind: str, *, labels: str = "", fields: str = "", all_namespaces: bool = False) -> list[Resource]:
        """Return objects of the namespace, or of all."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        found = self._request("GET", self._path(kind, all_namespaces=all_namespaces), query=query)
        listed: list[Resource] = found["items"]
        # Items of a list say neither their kind nor their version.
        about = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [about | item for item in listed]

    def table(self, kind: str, name: str | None = None, *, all_namespaces: bool = False) -> Resource:
        """Return objects as a table with the columns of the API server, which kubectl prints as well."""
        return self._request("GET", self._path(kind, name, all_namespaces=all_namespaces), accept=TABLE)

    def create(self, kind: str, manifest: Resource, *, dry_run: bool = False) -> Resource:
        """Create an object; with `dry_run` the API server only checks it."""
        query = {"fieldManager": "turnmill"} | ({"dryRun": "All"} if dry_run else {})
        return self._request("POST", self._path(kind), body=manifest, query=query)

    def patch(self, kind: str, name: str, change: Resource) -> Resource:
        """Merge a change into an object."""
        return self._request("PATCH", self._path(kind, name), body=change, content_type=MERGE_PATCH)

    def delete(self, kind: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete an object; its parts follow in the background."""
        body = {"propagationPolicy": "Background"}
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._request("DELETE", self._path(kind, name), body=body | options)

    # Connections to pods

    def execute(self, pod: str, container: str, command: Sequence[str]) -> CommandStream:
        """Start a command in a container; returns the client's stream of bytes."""
        from kubernetes import client
        from kubernetes.stream import stream

        call = client.CoreV1Api(self._api).connect_get_namespaced_pod_exec
        opened: CommandStream = self._connect(
            lambda **options: stream(call, pod, self.namespace, **options),
            pod,
            container=container,
            command=list(command),
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            binary=True,
            _preload_content=False,
        )
        return opened

    def forward(self, pod: str, port: int) -> socket.socket:
        """Open a connection to a port of a pod, through the API server; returns a socket."""
        from kubernetes import client
        from kubernetes.stream import portforward

        call = client.CoreV1Api(self._api).connect_get_namespaced_pod_portforward
        opened: PortForward = self._connect(
            lambda **options: portforward(call, pod, self.namespace, **options), pod, ports=str(port)
        )
        return opened.socket(port)

    def _connect(self, open_stream: Callable[..., Opened], pod: str, **options: object) -> Opened:
        from kubernetes.client.exceptions import ApiException

        try:
            with self._connecting:
                return open_stream(**options)
        except ApiException as error:
            raise ClusterError(f"Pod {pod} cannot be reached: {error.reason}", error.status or 0) from error

    # Requests

    def _path(self, kind: str, name: str | None = None, *, all_namespaces: bool = False) -> str:
        group_version, _, plural = kind.rpartition("/")
        root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        parts = [root, *([] if all_namespaces else ["namespaces", self.namespace]), plural, *([name] if name else [])]
        return "/".join(parts)

    def _request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Resource | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Resource:
        from urllib3.exceptions import HTTPError

        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        request = self._api.param_serialize(
            verb,
            path,
            query_params=[(name, value) for name, value in (query or {}).items() if value],
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*request, _request_timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
            text = response.read()
        except HTTPError as error:
            host = self._api.configuration.host
            raise ClusterError(f"The API server {host} cannot be reached: {error}") from error
        if response.status >= 400:
            raise ClusterError(_message(text), response.status)
        found: Resource = json.loads(text)
        return found


def _message(text: bytes) -> str:
    """Return what the API server says about a request that it refused."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")


def has_kubeconfig() -> bool:
    """Return whether there is a kubeconfig where kubectl looks for it."""
    return any(Path(file).is_file() for file in _kubeconfig().split(os.pathsep) if file)


def _kubeconfig() -> str:
    """Return the path of the kubeconfig, or several with colons between them."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
