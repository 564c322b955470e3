"""The Job that fetches a team's models: an archive over HTTP into the claim, which pods of runs mount."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.programs import why_no_program
from support.team_release import RELEASE, TeamRelease, pod

MISSING = why_no_program("helm")

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(MISSING is not None, reason=MISSING or "")]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
JOBS = "app.kubernetes.io/component=models"
SERVE = """
import hashlib, io, tarfile
from http.server import HTTPServer, SimpleHTTPRequestHandler
content = io.BytesIO()
with tarfile.open(fileobj=content, mode="w") as archive:
    for name, data in {"base/config.json": b"{}", "base/model.safetensors": b"weights" * 1000}.items():
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
open("/tmp/base.tar", "wb").write(content.getvalue())
print(hashlib.sha256(content.getvalue()).hexdigest(), flush=True)
class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *arguments):
        super().__init__(*arguments, directory="/tmp")
HTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def publisher(prefix: str) -> Iterator[Namespace]:
    """A namespace whose pod `server` publishes an archive, and logs its SHA-256."""
    with temporary_namespace(prefix, labels=RESTRICTED) as namespace:
        namespace.apply(pod("server", {"app": "server"}, "python", "-c", SERVE))
        namespace.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "models"},
                "spec": {"selector": {"app": "server"}, "ports": [{"port": 8000}]},
            }
        )
        namespace.kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=120s", timeout=130)
        yield namespace


def values(publisher: Namespace, *sources: dict[str, Any]) -> dict[str, Any]:
    to = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": publisher.name}}}]
    return {
        "storage.models": {
            "enabled": True,
            "size": "1Gi",
            "accessModes": ["ReadWriteOnce"],
            "keep": False,
            "sources": list(sources),
            "fetch": {
                "egress": [{"to": to, "ports": [{"port": 8000, "protocol": "TCP"}]}],
                "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
            },
        },
        "toolServer.enabled": False,
    }


def ended(namespace: Namespace, condition: str) -> str:
    """Wait for the end of the Job of models; return the log of its last pod."""

    def found() -> bool:
        return any(
            (each["type"], each["status"]) == (condition, "True")
            for job in namespace.list("jobs", JOBS)
            for each in job.get("status", {}).get("conditions", ())
        )

    wait_for(f"{condition} of the models' Job", found, seconds=240)
    pods = sorted(namespace.list("pods", JOBS), key=lambda each: each["metadata"]["creationTimestamp"])
    return namespace.logs(pods[-1]["metadata"]["name"])


def test_models_are_fetched_once_and_a_mistake_fails_at_once(publisher: Namespace, namespace: Namespace):
    digest = wait_for("the archive", lambda: publisher.logs("server").split(), seconds=60)[0]
    base = {"name": "base", "url": f"http://models.{publisher.name}.svc:8000/base.tar", "sha256": digest}
    release = TeamRelease(namespace)

    release.install(values(publisher, base))
    assert "base: fetched, 2 files" in ended(namespace, "Complete")

    # Another list makes another Job, which finds the first model there.
    again = {**base, "name": "again"}
    release.install(values(publisher, base, again))
    log = ended(namespace, "Complete")
    assert "base: is there, 2 files" in log
    assert "again: fetched, 2 files" in log

    reader = pod(
        "reader", {}, volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": f"{RELEASE}-models"}}]
    )
    reader["spec"]["containers"][0]["volumeMounts"] = [{"name": "models", "mountPath": "/models", "readOnly": True}]
    namespace.apply(reader)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/reader", "--timeout=60s", timeout=70)
    record = json.loads(namespace.run_in("reader", "cat", "/models/again/.turnmill-model.json"))
    assert set(record["files"]) == {"config.json", "model.safetensors"}
    namespace.delete("pod", "reader")

    # What has a name already is not replaced: no attempt would change that.
    release.install(values(publisher, {**base, "sha256": "0" * 64}))
    assert "is there already" in ended(namespace, "Failed")
    (job,) = namespace.list("jobs", JOBS)
    assert job["status"]["failed"] == 1
    release.uninstall()
