"""Failures of the tool servers and stores that a run on one machine starts."""

import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from support.server_process import alive, eventually
from turnmill.core.errors import RunFailedError, StoreUnavailableError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.tool_server import RunToolServer
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import services as module
from turnmill.runs.processes import Owner
from turnmill.runs.server_process import answers, is_healthy
from turnmill.runs.services import ToolServerProcess, services
from turnmill.testing.agent_loops import tool_job
from turnmill.trajectories.embedded import EmbeddedStore

SERVER = """
import http.server, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
"""

SHOUT = """
from turnmill.tools.base import Tool, ToolResult
from turnmill.tools.registry import register

@register
class Shout(Tool):
    name = "shout"
    def usage(self):
        return "shout"
    def parse(self, action):
        return action if action == "shout" else None
    async def call(self, call):
        return ToolResult("SHOUT" + self.context.settings["SHOUT_END"])
"""

RUN = """
import sys, time
from pathlib import Path
from turnmill.jobs.tool_server import RunToolServer
from turnmill.runs.server_process import is_healthy
from turnmill.runs.services import ToolServerProcess
server = ToolServerProcess("python_code", sys.argv[1], RunToolServer(), run_name="run", log_file=Path(sys.argv[2]))
server.start()
print(server._process.pid, flush=True)
time.sleep(600)
"""


def server_that_runs(command: Callable[[int], list[str]], log_folder: Path, monkeypatch) -> ToolServerProcess:
    """Return a tool server that runs another command, which is made of the descriptor of its listener."""

    def launch(self: ToolServerProcess) -> None:
        listener = self._listener.fileno()
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                command(listener), pass_fds=[listener], stdout=output, stderr=subprocess.STDOUT
            )

    monkeypatch.setattr(ToolServerProcess, "_launch", launch)
    settings = RunToolServer()
    return ToolServerProcess("python_code", "redis://localhost", settings, run_name="run", log_file=log_folder)


@pytest.mark.parametrize(
    ("script", "is_final"),
    [
        ("echo unknown tool; exit 2", True),
        ("kill -9 $$", False),
    ],
)
def test_a_server_that_does_not_start_is_a_final_failure_only_if_its_settings_are_wrong(
    tmp_path, monkeypatch, script, is_final
):
    server = server_that_runs(lambda listener: ["sh", "-c", script, str(listener)], tmp_path, monkeypatch)

    with pytest.raises(RunFailedError) as raised:
        server.start()

    assert raised.value.is_final == is_final


def test_a_failed_restart_of_a_server_is_retried(tmp_path, monkeypatch):
    server = server_that_runs(lambda listener: [sys.executable, "-c", SERVER, str(listener)], tmp_path, monkeypatch)
    server.start()
    launch, refused = ToolServerProcess._launch, []

    def refuse_once(self: ToolServerProcess) -> None:
        if not refused:
            refused.append(True)
            raise BlockingIOError(11, "no more processes")
        launch(self)

    monkeypatch.setattr(ToolServerProcess, "_launch", refuse_once)
    assert server._process is not None
    server._process.kill()

    assert eventually(lambda: refused and is_healthy(server.url), seconds=60)
    server.stop()


def test_connections_wait_for_the_server_that_replaces_another(tmp_path, monkeypatch):
    server = server_that_runs(lambda listener: [sys.executable, "-c", SERVER, str(listener)], tmp_path, monkeypatch)
    server.start()
    first = server._process
    first.send_signal(signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as waiting:
        waiting.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        first.kill()

        assert waiting.recv(12) == b"HTTP/1.0 200"

    assert server._process is not first
    server.stop()


BLOCKED = """
import time
from pathlib import Path
from turnmill.core.activity import show_activity
show_activity()
""" + SERVER.replace("self.send", "time.sleep(600 if Path(sys.argv[2]).exists() else 0); self.send", 1)


def test_a_server_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HUNG_SECONDS", 1.0)
    mark = tmp_path / "blocked"
    server = server_that_runs(
        lambda listener: [sys.executable, "-c", BLOCKED, str(listener), str(mark)], tmp_path, monkeypatch
    )
    server.start()
    hung = server._process
    assert hung is not None

    mark.touch()

    assert eventually(lambda: hung.returncode is not None, seconds=60)
    mark.unlink()
    assert eventually(lambda: server._process is not hung and is_healthy(server.url), seconds=60)
    assert hung.returncode == -signal.SIGKILL
    server.stop()


@pytest.mark.parametrize("blocked", [False, True])
def test_a_server_that_is_stopped_is_replaced_before_one_that_is_blocked(tmp_path, monkeypatch, blocked):
    """A tool may block its server for a while: other threads run then."""
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.5)
    monkeypatch.setattr(module, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(module, "HUNG_SECONDS", 600.0)
    mark, asked = tmp_path / "blocked", []
    server = server_that_runs(
        lambda listener: [sys.executable, "-c", BLOCKED, str(listener), str(mark)], tmp_path, monkeypatch
    )
    server.start()
    first = server._process
    assert first is not None
    monkeypatch.setattr(module, "answers", lambda url, **limits: asked.append(answers(url, **limits)) or asked[-1])

    mark.touch() if blocked else first.send_signal(signal.SIGSTOP)

    if blocked:
        assert eventually(lambda: asked.count(False) > 2 * module.STILL_LOOKS, seconds=60)
        assert server._process is first
    else:
        assert eventually(lambda: server._process is not first and is_healthy(server.url), seconds=60)
    server.stop()


STOPPED_AT_ITS_START = (
    """
import os, signal, sys
from pathlib import Path
mark = Path(sys.argv[2])
if mark.exists():
    mark.unlink()
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    + SERVER
)


def test_a_server_that_is_stopped_as_it_starts_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 600.0)
    mark = tmp_path / "stops"
    server = server_that_runs(
        lambda listener: [sys.executable, "-c", STOPPED_AT_ITS_START, str(listener), str(mark)], tmp_path, monkeypatch
    )
    server.start()
    mark.touch()
    server._process.kill()

    assert eventually(lambda: not mark.exists() and is_healthy(server.url), seconds=60)
    server.stop()


def test_a_server_that_answers_is_kept_even_if_it_is_not_well(tmp_path, monkeypatch):
    """An answer of any kind shows that it does not hang."""
    monkeypatch.setattr(module, "HUNG_SECONDS", 0.0)
    monkeypatch.setattr(module, "ASK_SECONDS", 0.0)
    unwell = SERVER.replace("send_response(200)", "send_response(503 if Path(sys.argv[2]).exists() else 200)")
    unwell = f"from pathlib import Path{unwell}"
    mark = tmp_path / "unwell"
    server = server_that_runs(
        lambda listener: [sys.executable, "-c", unwell, str(listener), str(mark)], tmp_path, monkeypatch
    )
    server.start()
    first = server._process
    mark.touch()
    asked = []
    monkeypatch.setattr(module, "answers", lambda url, **limits: asked.append(answers(url, **limits)) or asked[-1])

    assert eventually(lambda: len(asked) > 3, seconds=60)
    assert (server._process is first, all(asked), is_healthy(server.url)) == (True, True, False)
    server.stop()


def test_a_server_ends_with_a_run_that_is_killed(tmp_path):
    with EmbeddedStore() as store:
        command = [sys.executable, "-c", RUN, store.url, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            server = int(run.stdout.readline())
            assert alive(server)

            run.kill()

        eventually(lambda: not alive(server))


@pytest.mark.feature("verl-tool", "flags of the server")
def test_the_server_of_a_run_has_the_flags_and_settings_of_tools_of_the_job(tmp_path, monkeypatch):
    monkeypatch.delenv(module.STORE_VARIABLE, raising=False)
    (tmp_path / "shout.py").write_text(SHOUT)
    flags = {"doneIfInvalid": True, "threadPoolSize": 3, "maxConcurrentRequests": 8, "requestTimeout": 60}
    settings = {"settings": {"TOOLS_FOLDER": str(tmp_path), "SHOUT_END": "!"}}
    job = tool_job(toolType="shout", toolServer=flags | settings)
    folder = RunFolder(tmp_path / "run")
    folder.create()

    with services(job, folder, Owner(tmp_path / "attempt.json", uuid.uuid4().hex)) as running:
        running.wait()
        body = {"trajectory_ids": ["t", "u"], "actions": ["shout", "whisper"]}
        response = httpx.post(f"{running.addresses['tool_server_url']}/get_observation", json=body, timeout=60).json()
        health = httpx.get(f"{running.addresses['tool_server_url']}/health").json()

    assert response["observations"][0] == "SHOUT!"
    assert (response["dones"], response["valids"]) == ([False, True], [True, False])
    assert (health["thread_pool_size"], health["max_concurrent"]) == (3, 8)


def test_a_store_that_does_not_start_is_not_a_final_failure(tmp_path, monkeypatch):
    def fail(self: EmbeddedStore) -> None:
        raise StoreUnavailableError("did not start within 20 s")

    monkeypatch.setattr(EmbeddedStore, "start", fail)
    monkeypatch.delenv(module.STORE_VARIABLE, raising=False)
    job: AgentTrainingJob = tool_job()

    with (
        pytest.raises(RunFailedError, match="within 20 s") as raised,
        services(job, RunFolder(tmp_path), Owner(tmp_path / "attempt.json", uuid.uuid4().hex)),
    ):
        pass

    assert not raised.value.is_final
