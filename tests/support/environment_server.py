"""`turnmill serve-environment` as a real process, and a client that speaks OpenEnv's messages."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from pydantic import JsonValue
from websockets.sync.client import connect

from support.programs import end

START_SECONDS = 120.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 60.0

JsonObject = dict[str, JsonValue]


class EnvironmentServerProcess:
    """One `turnmill serve-environment` and its log."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "turnmill.cli.main", "serve-environment", "--port", "0", *arguments]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables)
        self.url = ""

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> Self:
        """Wait until it serves."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"Environment server ready url=(\S+)", self.log):
                self.url = found[1]
                return self
            time.sleep(0.02)
        self.close()
        raise AssertionError(f"The server is not ready:\n{self.log}")

    def session(self, **headers: str) -> "Client":
        """Open a session."""
        return Client(self.url, **headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Send a GET request."""
        return httpx.get(self.url + path, headers=headers, timeout=ANSWER_SECONDS)

    def post(self, path: str, content: str) -> httpx.Response:
        """Send a POST request."""
        return httpx.post(self.url + path, content=content, timeout=ANSWER_SECONDS)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        """End it."""
        end(self.process, STOP_SECONDS)


class Client:
    """A session of a server, over a WebSocket."""

    def __init__(self, url: str, **headers: str) -> None:
        address = url.replace("http", "ws", 1) + "/ws"
        self.socket = connect(address, additional_headers=headers, open_timeout=ANSWER_SECONDS, proxy=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, kind: str, **data: JsonValue) -> None:
        """Send a message."""
        self.socket.send(json.dumps({"type": kind, "data": data}))

    def receive(self) -> JsonObject:
        """Return the next message."""
        message = json.loads(self.socket.recv(timeout=ANSWER_SECONDS))
        assert isinstance(message, dict)
        return message

    def reset(self, **parameters: JsonValue) -> JsonObject:
        """Start an episode and return the data of the answer."""
        self.send("reset", **parameters)
        return self._observed()

    def step(self, action: str) -> JsonObject:
        """Execute an action and return the data of the answer."""
        self.send("step", action=action)
        return self._observed()

    def state(self) -> JsonObject:
        """Return the state of the session."""
        self.socket.send('{"type": "state"}')
        return self._data("state")

    def error(self) -> JsonObject:
        """Return the data of the next message, which is an error."""
        return self._data("error")

    def _observed(self) -> JsonObject:
        return self._data("observation")

    def _data(self, kind: str) -> JsonObject:
        message = self.receive()
        assert message["type"] == kind, message
        data = message["data"]
        assert isinstance(data, dict)
        return data
