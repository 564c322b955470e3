"""A Prometheus of a test's own, which scrapes every second."""

import math
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from support.kubernetes import Namespace
from support.toxiproxy import free_port

START_SECONDS = 30.0


class PrometheusApi:
    """What a Prometheus has seen since a moment, asked with a value every so many seconds."""

    def __init__(self, url: str, *, since: float, step_seconds: int = 1) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30)
        self._since = since
        self._step_seconds = step_seconds

    def has_seen(self, expression: str) -> bool:
        """Whether an expression has had a finite value at some time since then."""
        return any(math.isfinite(float(value)) for series in self.history(expression) for _, value in series["values"])

    def history(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression since then."""
        asked = {"query": expression, "start": self._since, "end": time.time(), "step": self._step_seconds}
        answer = self._http.post("/api/v1/query_range", data=asked)
        assert answer.is_success, f"{expression}: {answer.text}"
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def answers(self) -> bool:
        """Whether it takes queries."""
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextmanager
def prometheus_of_cluster(*, since: float) -> Iterator[PrometheusApi | None]:
    """That of a cluster, the service `prometheus` in the namespace `monitoring`; None where none answers."""
    service = Namespace("monitoring").get("service", "prometheus")
    if service is None:
        yield None
        return
    api = PrometheusApi(f"http://{service['spec']['clusterIP']}:9090", since=since, step_seconds=5)
    try:
        yield api if api.answers() else None
    finally:
        api.close()


class Prometheus(PrometheusApi):
    """Scrapes targets, given by scrape job as ports of this machine; `with` starts it and ends it."""

    def __init__(self, program: Path, folder: Path, targets: Mapping[str, int]) -> None:
        self._program = program
        self._folder = folder
        self._targets = targets
        self._port = free_port()
        super().__init__(f"http://127.0.0.1:{self._port}", since=time.time())

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise RuntimeError(f"Prometheus did not start within {START_SECONDS:g} s: see {self._folder}.")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self._process.kill()
        self._process.wait()

    def _config(self) -> dict[str, Any]:
        return {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "team-a", "pod": f"{job}-0"}}
                    ],
                }
                for job, port in self._targets.items()
            ],
        }
