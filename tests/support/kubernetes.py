"""A Kubernetes cluster for tests, through kubectl: objects as dictionaries, and waits for conditions."""

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

Manifest = Mapping[str, Any]
Result = TypeVar("Result")

COMMAND_SECONDS = 60.0
DELETE_SECONDS = 180.0
POLL_SECONDS = 0.5


def why_no_cluster() -> str | None:
    """Return why tests on a cluster are skipped; None if they can run."""
    if not os.environ.get("KUBECONFIG"):
        return "needs a Kubernetes cluster: set KUBECONFIG"
    if shutil.which("kubectl") is None:
        return "needs kubectl in PATH"
    return None


class KubectlError(AssertionError):
    """A kubectl command that a test needs has failed."""


class Namespace:
    """kubectl in one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = COMMAND_SECONDS) -> str:
        """Run a command and return what it prints; raises KubectlError where it fails."""
        done = self.try_kubectl(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def try_kubectl(
        self, *arguments: str, stdin: str | None = None, timeout: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        command = ["kubectl", "--namespace", self.name, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)

    def apply(self, *manifests: Manifest) -> None:
        """Create or change objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "--server-side", "--field-manager=test", "--filename=-", stdin=json.dumps(listed))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object; None if there is none."""
        found: dict[str, Any] | None = json.loads(
            self.kubectl("get", kind, name, "--output=json", "--ignore-not-found") or "null"
        )
        return found

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind, optionally those with certain labels."""
        arguments = [f"--selector={selector}"] if selector else []
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--output=json", *arguments))["items"]
        return items

    def delete(self, kind: str, name: str, *arguments: str) -> None:
        """Delete an object; does nothing if there is none."""
        self.kubectl("delete", kind, name, "--ignore-not-found", *arguments, timeout=DELETE_SECONDS)

    def logs(self, pod: str, *arguments: str) -> str:
        """Return the log of a pod."""
        return self.kubectl("logs", pod, *arguments)

    def run_in(self, pod: str, *command: str, container: str | None = None, timeout: float = COMMAND_SECONDS) -> str:
        """Run a command in a pod and return what it prints."""
        chosen = ["--container", container] if container else []
        return self.kubectl("exec", pod, *chosen, "--", *command, timeout=timeout)


def is_ready(pod: Manifest) -> bool:
    """Return True if a pod is ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def wait_for(what: str, find: Callable[[], Result | None], *, seconds: float) -> Result:
    """Return the first true result of `find`; raises AssertionError if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (result := find()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        time.sleep(POLL_SECONDS)
    return result


@contextmanager
def temporary_namespace(prefix: str, *, labels: Mapping[str, str] | None = None) -> Iterator[Namespace]:
    """Create a namespace, and delete it with all its objects at the end."""
    namespace = Namespace(f"{prefix}-{uuid.uuid4().hex[:8]}")
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace.name, "labels": dict(labels or {})},
    }
    namespace.apply(manifest)
    try:
        yield namespace
    finally:
        namespace.kubectl("delete", "namespace", namespace.name, "--wait=true", timeout=DELETE_SECONDS)
