"""The operator as a process on this machine, connected to a cluster by KUBECONFIG."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.programs import end

START_SECONDS, STOP_SECONDS, ANSWER_SECONDS = 90.0, 20.0, 10.0
POLL_SECONDS = 0.1


class OperatorProcess:
    """One replica for one namespace, or for all, and its log."""

    def __init__(self, namespace: str | None, log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._namespace = namespace
        self._environment = dict(environment or {})
        self._start()

    def _start(self) -> None:
        own = "default" if self._namespace is None else self._namespace
        watched = [] if self._namespace is None else ["--namespace", self._namespace]
        command = [sys.executable, "-m", "turnmill_operator", *watched, "--port", "0"]
        variables = {"PYTHONPATH": os.pathsep.join(sys.path), "POD_NAMESPACE": own, **self._environment}
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables
            )

    @property
    def log(self) -> str:
        """The log since the start."""
        return self._log.read_bytes()[self._begin :].decode(errors="replace")

    def wait_until_ready(self) -> "OperatorProcess":
        """Wait until the first listings are complete."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answer("/readyz")[0] == 200:
                return self
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"the operator is not ready:\n{self.log}")

    def is_healthy(self) -> bool:
        """Return True if the health endpoint reports a healthy process."""
        return self._answer("/healthz")[0] == 200

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's series with certain labels."""
        selected = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in self._answer("/metrics")[1].splitlines() if re.match(rf"{name}[{{ ]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in selected))

    def writes(self) -> float:
        """Return the number of writes to the API server so far, without those of the Lease."""
        verbs = [
            self.metric("turnmill_operator_api_requests_total", verb=verb)
            for verb in ("patch", "post", "put", "delete")
        ]
        return sum(verbs) - self.metric("turnmill_operator_api_requests_total", resource="leases") + self._lease_reads()

    def _lease_reads(self) -> float:
        return self.metric("turnmill_operator_api_requests_total", resource="leases", verb="get")

    def memory_mib(self) -> float:
        """Return the resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def restart(self, *, kill: bool = False) -> None:
        """Stop or kill the process, and start it again."""
        self.stop(kill=kill)
        self._start()

    def stop(self, *, kill: bool = False) -> None:
        """Stop or kill the process, and wait for its end."""
        if kill:
            self.process.kill()
        end(self.process, STOP_SECONDS)

    def _answer(self, path: str) -> tuple[int, str]:
        found = re.search(r'"Operator started".*"port":(\d+)', self.log)
        if found is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=ANSWER_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""


@contextmanager
def operator_process(
    namespace: str | None, log: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[OperatorProcess]:
    """Start a replica and wait until it is ready; stop it at the end."""
    operator = OperatorProcess(namespace, log, environment=environment)
    try:
        yield operator.wait_until_ready()
    finally:
        operator.stop()
