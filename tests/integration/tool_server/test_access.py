"""Servers with a token, TLS and a port for metrics, as they are started from the command line."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from support.server_process import NewServer
from turnmill.core.errors import SettingsError, ToolCallRefusedError
from turnmill.core.ports import free_port
from turnmill.rollout.tool_agent.client import TOKEN, ToolRequest, ToolServerClient
from turnmill.runs.server_process import require_access

BODY = {"trajectory_ids": ["t"], "actions": ["count"]}
SECRET = "0123456789abcdef0123456789abcdef"

PATIENT = {"timeout_seconds": 60, "outage_seconds": 60, "max_retries": 3, "max_connections": 1}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_loop_sends_the_token_of_its_environment(
    new_server: NewServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
):
    (tmp_path / "token").write_text(SECRET)
    server = new_server("--tool_type", "trial", "--token-file", str(tmp_path / "token"), "--uvi_workers", workers)

    async def call() -> str:
        async with ToolServerClient([server.url], **PATIENT) as client:
            return (await client.call(ToolRequest("t", "count"))).text

    with pytest.raises(ToolCallRefusedError, match="answered 401"):
        asyncio.run(call())
    with pytest.raises(SettingsError, match=rf"{server.url} refuses the run \(401\): the token in {TOKEN} is missing"):
        require_access(server.url)
    monkeypatch.setenv(TOKEN, "another")
    with pytest.raises(SettingsError, match="is not its own"):
        require_access(f"http://127.0.0.1:{free_port()},{server.url}")
    monkeypatch.setenv(TOKEN, SECRET)
    require_access(server.url)
    assert asyncio.run(call()) == "count 1"


def test_a_server_with_a_certificate_speaks_https(new_server: NewServer, tmp_path: Path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject)
    subprocess.run([*new, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = new_server("--tool_type", "trial", "--tls-cert-file", str(certificate), "--tls-key-file", str(key))

    trusting = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(verify=trusting) as http:
        assert server.url.startswith("https://")
        assert http.post(server.url, json=BODY).json()["observations"] == ["count 1"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_metrics_are_on_a_port_of_their_own(new_server: NewServer, workers: str):
    server = new_server("--tool_type", "trial", "--metrics-port", "0", "--uvi_workers", workers)
    server.observe("count")
    address = server.log.partition("metrics=")[2].split()[0]

    text = httpx.get(address).text

    assert 'turnmill_tool_calls_total{outcome="done",tool="trial"} 1.0' in text
    assert server.http.get("/metrics").status_code == 404
    assert server.stop() == 0
