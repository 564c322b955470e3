from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.tool_server import Echo, MemoryStore, tool_context
from turnmill.core.errors import SettingsError
from turnmill.core.http_access import read_token
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.app import Worker, build_app, build_metrics_app
from turnmill.tool_server.calls import CallExecutor
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import ToolSet

TOKEN = "0123456789abcdef"
BODY = {"trajectory_ids": ["t"], "actions": ["echo a"]}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def worker(**settings: Any) -> Worker:
    metrics = ToolMetrics(("echo",))
    executor = CallExecutor(ToolSet([Echo(tool_context())]), MemoryStore(), metrics)
    return Worker(ServerSettings(**settings), executor, metrics)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(worker(**settings)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as http:
        yield http


async def status(http: httpx.AsyncClient, **headers: str) -> int:
    return (await http.post("/get_observation", json=BODY, headers=headers)).status_code


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:5000",
        "[::1]:5000",
        "localhost",
        "10.1.2.3",
        "node-12:5000",
        "tools.team.svc:5000",
        "Tools.Example.org",
    ],
)
async def test_addresses_local_names_and_allowed_names_are_served(host: str):
    async with serving(allow_host=("tools.example.org",)) as http:
        assert await status(http, Host=host) == 200


@pytest.mark.parametrize("path", ["/get_observation", "/health", "/metrics"])
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:5000", "svc.evil.example", "tools.example.org.evil.example"]
)
async def test_a_foreign_name_is_refused(host: str, path: str):
    async with serving(allow_host=("tools.example.org",)) as http:
        response = await http.post(path, json=BODY, headers={"Host": host})

    assert response.status_code == 421
    assert "--allow-host" in response.json()["detail"]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:5000", 200),
        ("http://127.0.0.1:8080", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
async def test_requests_of_other_sites_are_refused(origin: str, expected: int):
    async with serving() as http:
        assert await status(http, Origin=origin) == expected


async def test_without_a_token_file_no_token_is_needed():
    async with serving() as http:
        assert await status(http) == 200
        assert await status(http, Authorization="Bearer anything") == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Bearer {TOKEN}0"}, 401),
        ({"Authorization": "Bearer "}, 401),
    ],
)
async def test_a_call_needs_the_token(token_file: Path, headers: dict[str, str], expected: int):
    async with serving(token_file=token_file) as http:
        response = await http.post("/get_observation", json=BODY, headers=headers)

    assert response.status_code == expected
    assert response.headers.get("WWW-Authenticate") == ("Bearer" if expected == 401 else None)


async def test_only_probes_need_no_token(token_file: Path):
    async with serving(token_file=token_file) as http:
        statuses = {path: (await http.get(path)).status_code for path in ("/health", "/readyz", "/metrics", "/docs")}

    assert statuses == {"/health": 200, "/readyz": 200, "/metrics": 401, "/docs": 401}


async def test_metrics_on_a_port_of_their_own_are_not_on_the_servers_port():
    async with serving(metrics_port=9464) as http:
        assert (await http.get("/metrics")).status_code == 404
    transport = httpx.ASGITransport(build_metrics_app(worker(metrics_port=9464)))
    async with httpx.AsyncClient(transport=transport, base_url="http://10.1.2.3:9464") as scraper:
        assert "turnmill_tool_calls_in_flight" in (await scraper.get("/metrics")).text
        assert (await scraper.post("/get_observation", json=BODY)).status_code == 404


@pytest.mark.parametrize(("content", "message"), [("short", "5 characters"), ("two words are no token", "one word")])
def test_a_weak_token_is_refused(tmp_path: Path, content: str, message: str):
    (tmp_path / "token").write_text(content)

    with pytest.raises(SettingsError, match=message):
        read_token(tmp_path / "token")


def test_a_missing_token_file_is_reported(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"--token-file .* cannot be read"):
        read_token(tmp_path / "token")
