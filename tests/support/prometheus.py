"""A Prometheus for a test, which scrapes every second."""

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
from turnmill.core.ports import free_port

START_SECONDS = 30.0


class PrometheusApi:
    """Queries to a Prometheus over the time since `since`, with one value per step."""

    def __init__(self, url: str, *, since: float, step_seconds: int = 1) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30)
        self._since = since
        self._step_seconds = step_seconds

    def has_seen(self, expression: str) -> bool:
        """Return True if an expression has had a finite value since then."""
        return any(math.isfinite(float(value)) for series in self.history(expression) for _, value in series["values"])

    def history(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression since then."""
        query = {"query": expression, "start": self._since, "end": time.time(), "step": self._step_seconds}
        answer = self._http.post("/api/v1/query_range", data=query)
        assert answer.is_success, f"{expression}: {answer.text}"
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def answers(self) -> bool:
        """Return True if the server is ready for queries."""
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextmanager
def prometheus_of_cluster(*, since: float) -> Iterator[PrometheusApi | None]:
    """Return the service `prometheus` in the namespace `monitoring` of a cluster; None if it does not answer."""
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
    """A Prometheus that scrapes ports of this machine, by scrape job; `with` starts and stops it."""

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
