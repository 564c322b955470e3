import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from turnmill.cli.main import main


class OneCallServer:
    """A tool server that keeps what it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], str | None]] = []
        self.status = 200
        calls, server = self.calls, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                calls.append((self.path, body, self.headers["Authorization"]))
                answer = json.dumps({"observations": ["4 ✓"], "dones": [False], "valids": [True]}).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[OneCallServer]:
    server = OneCallServer()
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.mark.feature("verl-tool", "a client of one call")
def test_a_call_prints_the_answer_and_leaves_no_state(server: OneCallServer, capsys: pytest.CaptureFixture[str]):
    assert main(["call-tool", "<python>2+2</python>", "--url", f"{server.url}/get_observation"]) == 0

    assert json.loads(capsys.readouterr().out) == {"observations": ["4 ✓"], "dones": [False], "valids": [True]}
    (path, call, _), (_, end, _) = server.calls
    assert (path, call["actions"], call["finish"]) == ("/get_observation", ["<python>2+2</python>"], [False])
    assert (end["trajectory_ids"], end["finish"]) == (call["trajectory_ids"], [True])


def test_a_named_trajectory_is_kept_until_it_is_finished(server: OneCallServer):
    assert main(["call-tool", "count", "--trajectory-id=a", "--extra", '{"k": 1}', "--url", server.url]) == 0
    assert main(["call-tool", "--finish", "--trajectory_id", "a", "--url", server.url]) == 0

    [(_, call, _), (_, end, _)] = server.calls
    assert (call["trajectory_ids"], call["finish"], call["extra_fields"]) == (["a"], [False], [{"k": 1}])
    assert (end["trajectory_ids"], end["finish"], end["is_last_step"]) == (["a"], [True], [True])


def test_an_action_may_come_from_stdin(server: OneCallServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("several\nlines"))

    assert main(["call-tool", "-", "--url", server.url]) == 0

    assert server.calls[0][1]["actions"] == ["several\nlines"]


def test_the_token_comes_from_a_file_or_the_environment(
    server: OneCallServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TURNMILL_TOOL_SERVER_TOKEN", "of-the-environment")
    (tmp_path / "token").write_text("of-the-file\n")

    assert main(["call-tool", "a", "--trajectory-id=a", "--url", server.url]) == 0
    assert main(["call-tool", "a", "--trajectory-id=a", f"--token-file={tmp_path}/token", "--url", server.url]) == 0

    assert [token for _, _, token in server.calls] == ["Bearer of-the-environment", "Bearer of-the-file"]


def test_an_answer_with_an_error_is_shown(server: OneCallServer, capsys: pytest.CaptureFixture[str]):
    server.status = 503

    assert main(["call-tool", "a", "--url", server.url]) == 1

    assert "get_observation answers 503: " in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["call-tool", "a", "--url", "http://127.0.0.1:1"]) == 1

    assert "http://127.0.0.1:1/get_observation does not answer" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    "arguments", [[], ["a", "--extra", "[1]"], ["a", "--extra", "{"], ["a", "--url", "file:///etc/passwd"]]
)
def test_wrong_arguments_are_refused(arguments: list[str]):
    assert main(["call-tool", *arguments]) == 2
