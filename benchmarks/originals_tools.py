"""verl-tool's tools, unedited, behind `turnmill tool-server`, with services that stand in for those that they call."""

import base64
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
import wave
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from originals_outcome import Outcome, chosen

TOOLS = "verl_tool/servers/tools"
SECONDS = 120.0


@dataclass(frozen=True)
class Call:
    """An action, and what its observation must contain."""

    action: str
    expected: str
    extra: Mapping[str, object] = field(default_factory=dict)


def _clip() -> str:
    """Return two seconds of silence as a data URL."""
    with wave.open(buffer := io.BytesIO(), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(64000))
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _calls(folder: Path) -> dict[str, list[Call]]:
    tests = json.dumps({"inputs": ["3\n"], "outputs": ["6\n"]})
    with sqlite3.connect(folder / "cities.sqlite") as database:
        database.execute("create table city (name text)")
        database.execute("insert into city values ('Bonn')")
    rows = {"db_id": "cities", "db_path": str(folder / "cities.sqlite"), "gt_sql": "select 1", "turns_left": 3}
    crop = '{"name": "audio_crop", "arguments": {"target_audio": 1, "time_window": [0, 1]}}'
    program = '{"language": "python", "version": "*", "files": [{"content": "print(6)"}]}'
    mcp = '{"name": "a", "server": "s", "arguments": {}}'
    image = '{"name": "crop_image", "arguments": {"target_image": 1, "bbox_2d": [0, 0, 1, 1]}}'
    return {
        "audio_crop": [Call(f"<tool_call>{crop}</tool_call>", "data:audio/wav", {"audios": [_clip()]})],
        "bash_terminal": [
            Call("<bash>cd /tmp; export A=5</bash>", "<o>"),
            Call("<bash>pwd; echo $A</bash>", "/tmp\\n5"),
        ],
        "bing_search": [Call("<search>a</search>", "")],
        "google_search": [Call("<search>a</search>", "")],
        "ipython_code": [
            Call("<python>x = 41</python>", "successfully"),
            Call("<python>print(x + 1)</python>", "42"),
        ],
        "mcp_interface": [Call(f"<tool_call>{mcp}</tool_call>", "<mcp_response>")],
        "piston": [Call(program, "6")],
        "pixel_reasoner": [Call(f"<tool_call>{image}</tool_call>", "<image>")],
        "python_code": [
            Call("<python>print(6 * 7)</python>", "42"),
            Call("```python\nimport subprocess\n```", "block"),
        ],
        "python_oj": [Call("```python\nprint(int(input()) * 2)\n```", "passed", {"public_tests": tests})],
        "sandbox_fusion": [Call("<python>print(6)</python>", "six of the sandbox")],
        "search_retrieval": [
            Call("<search>a</search>", "Doc 1(Title: A) about a"),
            Call("<answer>b</answer>", ""),
        ],
        "sql": [
            Call("<sql>select name from city</sql>", "Bonn", rows),
            Call("<solution>select 1</solution>", "", rows),
        ],
        "text_browser": [Call("", "")],
    }


def outcomes(folder: Path, names: Sequence[str], scratch: Path) -> Iterator[Outcome]:
    """Yield what became of each tool of verl-tool."""
    with _services() as environment:
        for tool, calls in _calls(scratch).items():
            file = f"{TOOLS}/{tool}.py"
            if chosen(file, names):
                copy = scratch / f"tools-{tool}"
                shutil.copytree(folder / "verl-tool" / TOOLS, copy)
                yield _served(file, tool, copy, calls, environment)


def _served(file: str, tool: str, folder: Path, calls: Sequence[Call], environment: Mapping[str, str]) -> Outcome:
    done = "served; " + ("one call" if len(calls) == 1 else f"{len(calls)} calls")
    command = [sys.executable, "-m", "turnmill.cli.main", "tool-server", "--tool-type", tool, "--port", "0"]
    settings = ("--set", f"TOOLS_FOLDER={folder}", "--set", "VERL_TOOL_IMPORTS=on", "--max-concurrent-requests", "64")
    with subprocess.Popen(
        [*command, *settings],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        printed = []
        try:
            for line in server.stdout:
                printed.append(line.strip())
                if port := re.search(r"server ready url=http://127.0.0.1:(\d+)", line):
                    break
            else:
                return Outcome("verl-tool", file, "served", *_refusal(printed, folder))
            for call in calls:
                said = _call(int(port[1]), call)
                if call.expected not in said or '"error"' in said:
                    return Outcome("verl-tool", file, done, "fails", [said[:300]])
            _call(int(port[1]), Call("", "", {"finish": True}))
            return Outcome("verl-tool", file, done, "works")
        finally:
            server.terminate()
            server.communicate(timeout=SECONDS)


def _refusal(printed: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Return the last line that a server printed, unless it is the end of a traceback."""
    last = next((line for line in reversed(printed) if line), "nothing was printed")
    failed = any("Traceback" in line for line in printed)
    return "fails" if failed else "refused", [last.replace(f"{folder}/", "")]


def _call(port: int, call: Call) -> str:
    body = {"trajectory_ids": ["t"], "actions": [call.action], "extra_fields": [dict(call.extra)]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/get_observation", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            said: str = answer.read().decode()
            return said
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


class _Services(BaseHTTPRequestHandler):
    """Answers as a retriever and as SandboxFusion."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        ran = {"status": "Finished", "stdout": "six of the sandbox", "execution_time": 0.1}
        documents = [{"document": {"contents": "A\nabout a"}, "score": 1.0}]
        answer = {"/retrieve": {"result": [documents]}, "/run_code": {"status": "Success", "run_result": ran}}
        body = json.dumps(answer[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def _services() -> Iterator[Mapping[str, str]]:
    """Yield the environment variables with which the tools find the services."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Services)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield {"RETRIEVER_URL": f"{address}/retrieve", "SANDBOX_FUSION_URL": address}
    finally:
        server.shutdown()
