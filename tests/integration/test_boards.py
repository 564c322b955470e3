"""Dashboard queries on a real Prometheus that scrapes a run and a tool server: every query returns a series."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.dashboard_queries import (
    needs_gpus,
    queries_of_gateways,
    queries_of_runs,
    queries_of_tool_servers,
    queries_without_data,
)
from support.gateway_process import GatewayProcess, ScriptedVllm
from support.programs import find_program, why_no_program
from support.prometheus import Prometheus
from support.server_process import ServerProcess, eventually
from support.training_runs import TOOL_JOB, TrainingRun
from turnmill.core.ports import free_port

pytestmark = pytest.mark.skipif(why_no_program("prometheus") is not None, reason=why_no_program("prometheus") or "")

RANGES = {"__rate_interval": "5s", "window": "20s", "__range": "60s"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "server.log", "--tool_type", "python_code")
    try:
        yield server.wait_until_ready()
    finally:
        server.close()


def port_of(server: ServerProcess) -> int:
    port = urlsplit(str(server.http.base_url)).port
    assert port is not None
    return port


def test_engines_can_report_their_metrics_to_ray():
    # In a separate process: vLLM is slow to import and stays in memory.
    program = "from vllm.v1.metrics.ray_wrappers import RayPrometheusMetric; RayPrometheusMetric()"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_every_query_on_tool_servers_and_the_store_returns_a_series(server: ServerProcess, tmp_path: Path):
    program = find_program("prometheus")
    assert program is not None
    wanted = queries_of_tool_servers()
    assert len(wanted) > 40

    with Prometheus(program, tmp_path, {"tool-server": port_of(server)}) as prometheus:
        numbers = count()

        def all_seen() -> bool:
            # A call with an id is recorded in the store.
            server.observe("<python>print(6 * 7)</python>", "t", call_id=f"call-{next(numbers)}")
            return not queries_without_data(prometheus, wanted, **RANGES)

        eventually(all_seen, seconds=60)
        answered = prometheus.history('sum(turnmill_tool_calls_total{outcome="done"})')[0]["values"][-1][1]

    assert float(answered) > 0


async def test_every_query_on_gateways_returns_a_series(tmp_path: Path):
    program = find_program("prometheus")
    assert program is not None
    wanted = queries_of_gateways()
    assert len(wanted) > 15

    async with ScriptedVllm(lambda prompt: "yes") as engine:
        gateway = await GatewayProcess(tmp_path, engine.url, "--metrics-port", "0").ready()
        port = urlsplit(gateway.metrics_url).port
        assert port is not None
        numbers = count()

        def all_seen() -> bool:
            message = {"role": "user", "content": f"What is {next(numbers)}?"}
            url = f"{gateway.url}/key/v1/chat/completions"
            httpx.post(url, json={"messages": [message]}, timeout=60).raise_for_status()
            return not queries_without_data(prometheus, wanted, **RANGES)

        try:
            with Prometheus(program, tmp_path, {"gateway": port}) as prometheus:
                await asyncio.to_thread(eventually, all_seen, seconds=60)
        finally:
            gateway.close()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_query_on_runs_returns_a_series(server: ServerProcess, tmp_path: Path):
    program = find_program("prometheus")
    assert program is not None
    wanted = [query for query in queries_of_runs() if not needs_gpus(query)]
    assert len(wanted) > 40
    job, port = tmp_path / "job.yaml", free_port()
    job.write_text(TOOL_JOB)

    with (
        TrainingRun(job, tmp_path / "run") as run,
        Prometheus(program, tmp_path, {"run": port, "tool-server": port_of(server)}) as prometheus,
    ):
        settings = {
            "metrics.port": port,
            "agent.toolServerUrl": server.http.base_url,
            # With a critic and with off-policy correction, whose metrics other runs do not have.
            "algorithm.type": "ppo",
            "algorithm.rolloutCorrection": "{importanceSampling: token, rejection: sequence}",
        }
        run.train(*(word for name, value in settings.items() for word in ("--set", f"{name}={value}")))

        assert queries_without_data(prometheus, wanted, **RANGES) == []
        assert queries_without_data(prometheus, queries_of_tool_servers(), **RANGES) == []
        assert not prometheus.has_seen("turnmill_token_mismatches_total > 0")
        parts = prometheus.history("sum(turnmill_step_part_seconds_total) / sum(turnmill_step_seconds_sum)")
        assert float(parts[0]["values"][-1][1]) == pytest.approx(1.0)
        waited = prometheus.history('turnmill_step_part_seconds_total{part=~"generation|tools"}')
        assert all(float(series["values"][-1][1]) > 0 for series in waited)
        assert len(waited) == 2
