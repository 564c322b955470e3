"""A Prometheus of a test's own, which scrapes every second."""

import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from turnmill.testing.toxiproxy import free_port

START_SECONDS = 30.0


class Prometheus:
    """Scrapes targets, given by scrape job as ports of this machine; `with` starts it and ends it."""

    def __init__(self, program: Path, folder: Path, targets: Mapping[str, int]) -> None:
        self._program = program
        self._folder = folder
        self._targets = targets
        self._started = time.time()

    def __enter__(self) -> Self:
        port = free_port()
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._api = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise RuntimeError(f"Prometheus did not start within {START_SECONDS:g} s: see {self._folder}.")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._api.close()
        self._process.kill()
        self._process.wait()

    def has_seen(self, expression: str) -> bool:
        """Whether an expression has had a finite value at some time since the start."""
        return any(math.isfinite(float(value)) for series in self.history(expression) for _, value in series["values"])

    def history(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression since the start, with a value per second."""
        asked = {"query": expression, "start": self._started, "end": time.time(), "step": "1"}
        answer = self._api.post("/api/v1/query_range", data=asked)
        assert answer.is_success, f"{expression}: {answer.text}"
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

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

    def _answers(self) -> bool:
        try:
            return self._api.get("/-/ready").is_success
        except httpx.TransportError:
            return False
