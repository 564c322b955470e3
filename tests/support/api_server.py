"""A Kubernetes API server with its etcd on this machine: objects, schemas and access as in a cluster, without nodes."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubernetes import wait_for
from support.programs import find_program
from turnmill.core.ports import free_ports
from turnmill.runs import server_process

PROGRAM = "kube"
START_SECONDS, STOP_SECONDS = 300.0, 20.0
TOKENS = {"admin": "system:masters", "nobody": "guests"}


def why_no_api_server() -> str | None:
    """Return why tests that need an API server are skipped; None if they can run."""
    return None if find_program(PROGRAM) else f"no {PROGRAM}, which has etcd and kube-apiserver in one program"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server and a kubeconfig with the contexts `admin` and `nobody`."""

    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as administrator and return what it prints."""
        command = [str(find_program(PROGRAM)), "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Create or change objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listed))

    def get(self, kind: str, name: str, namespace: str) -> Any:
        """Return an object; None if there is none."""
        found = self.kubectl("get", kind, name, f"--namespace={namespace}", "--output=json", "--ignore-not-found")
        return json.loads(found or "null")

    def write_status(self, kind: str, name: str, namespace: str, status: dict[str, Any]) -> None:
        """Replace the status of an object, as its operator does."""
        patch = f"--patch={json.dumps({'status': status})}"
        where = f"--namespace={namespace}"
        self.kubectl("patch", kind, name, where, "--subresource=status", "--type=merge", patch)


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Start both programs with their data in a folder, and stop them at the end."""
    program = str(find_program(PROGRAM))
    etcd, peers, port = free_ports(3)
    (folder / "tokens.csv").write_text("".join(f"{name},{name},{name},{group}\n" for name, group in TOKENS.items()))
    key = str(folder / "accounts.key")
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    clients = f"http://127.0.0.1:{etcd}"
    server = f"https://127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.enter_context(
            _process(
                folder / "etcd.log",
                *(program, "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
                *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
                *(
                    f"--listen-peer-urls=http://127.0.0.1:{peers}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
                ),
                f"--initial-cluster=default=http://127.0.0.1:{peers}",
            )
        )
        log = folder / "kube-apiserver.log"
        process = stack.enter_context(
            _process(
                log,
                *(program, "kube-apiserver", f"--etcd-servers={clients}", f"--cert-dir={folder / 'certificates'}"),
                *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}"),
                *("--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC"),
                *(f"--token-auth-file={folder / 'tokens.csv'}", "--disable-admission-plugins=ServiceAccount"),
                *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
                "--service-account-issuer=https://kubernetes.default.svc",
            )
        )
        found = ApiServer(_write_kubeconfig(folder, server))

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-2000:]
            command = [
                program,
                "kubectl",
                f"--kubeconfig={found.kubeconfig}",
                "get",
                "namespace",
                "default",
                "--request-timeout=20s",
            ]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        wait_for("API server", answers, seconds=START_SECONDS)
        yield found


@contextmanager
def _process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        server_process.stop(process, STOP_SECONDS)


def _write_kubeconfig(folder: Path, server: str) -> Path:
    # The server makes its own certificate, and appends that of the authority which signs it.
    authority = str(folder / "certificates" / "apiserver.crt")
    cluster = {"name": "test", "cluster": {"server": server, "certificate-authority": authority}}
    contexts = [{"name": name, "context": {"cluster": "test", "user": name, "namespace": "team-a"}} for name in TOKENS]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": name, "user": {"token": name}} for name in TOKENS],
        "contexts": contexts,
        "current-context": "admin",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def environment(server: ApiServer) -> dict[str, str]:
    """Return the environment of a process that uses the server."""
    return os.environ | {"KUBECONFIG": str(server.kubeconfig)}


def now() -> str:
    """Return the time as the API server writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
