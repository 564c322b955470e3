"""Main loop of an environment process: it answers one request at a time on a socket.

A message is its length in 4 bytes, big-endian, then that many bytes of JSON.
"""

import base64
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turnmill.environments.base import Environment
from turnmill.environments.registry import create
from turnmill.environments.rendering import to_png
from turnmill.environments.runtime.episode import TurnEnvironment

LENGTH = struct.Struct(">I")


class WorkerSettings(BaseModel):
    """Environment of a process, and the rules of the job for its episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    task: str | None = None
    max_turns: int = 64
    options: dict[str, JsonValue] = Field(default_factory=dict)
    python: str | None = None
    """Interpreter that runs the process, if the environment's packages conflict with turnmill's."""

    invalid_penalty: float = 0.1
    binary_reward: bool = True
    marker_required: bool = True
    memory_limit_bytes: int | None = None


def encode(message: Mapping[str, object]) -> bytes:
    """Serialize a message for the socket."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def make_turn_environment(settings: WorkerSettings) -> TurnEnvironment:
    """Create the environment, with the rules of the job applied."""
    return TurnEnvironment(
        create(settings.name, settings.task, settings.max_turns, settings.options),
        invalid_penalty=settings.invalid_penalty,
        binary_reward=settings.binary_reward,
        marker_required=settings.marker_required,
    )


def serve(connection: socket.socket, settings: WorkerSettings) -> None:
    """Create the environment and answer requests until the connection is closed."""
    try:
        environment = make_turn_environment(settings)
    except Exception as error:
        connection.sendall(encode({"error": _describe(error)}))
        return
    connection.sendall(encode({"ready": True}))
    preparation = _Preparation(environment.environment)
    with connection.makefile("rb") as requests:
        while header := requests.read(LENGTH.size):
            request = json.loads(requests.read(LENGTH.unpack(header)[0]))
            if request.get("do") != "act":
                preparation.wait()
            reply: dict[str, object]
            try:
                reply = {"result": handle(environment, request)}
            except Exception as error:
                reply = {"error": _describe(error)}
            connection.sendall(encode(reply))
            if isinstance(seed := request.get("next_seed"), int):
                preparation.start(seed)


class _Preparation:
    """Background thread that prepares the next reset while the policy generates."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._thread: threading.Thread | None = None

    def start(self, seed: int) -> None:
        """Prepare a reset with this seed, if the environment implements `prepare`."""
        if type(self._environment).prepare is not Environment.prepare:
            self._thread = threading.Thread(target=self._prepare, args=(seed,), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until the preparation in progress, if any, has finished."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _prepare(self, seed: int) -> None:
        # An error here happens again at the reset, which reports it.
        with contextlib.suppress(Exception):
            self._environment.prepare(seed)


def handle(environment: TurnEnvironment, request: Mapping[str, object]) -> object:
    """Handle one request and return its result, ready for JSON. Raises ValueError for an unknown request."""
    match request:
        case {"do": "reset", "seed": int(seed)}:
            return asdict(environment.reset(seed))
        case {"do": "act", "response": str(response)}:
            return asdict(environment.act(response))
        case {"do": "render"}:
            return base64.b64encode(to_png(environment.environment.render())).decode()
        case {"do": "close"}:
            environment.environment.close()
            return None
        case _:
            raise ValueError(f"An environment process does not know the request {request!r}.")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
