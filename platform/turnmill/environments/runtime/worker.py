"""The inside of an environment process: it answers one request at a time on a socket.

A message is its length in 4 bytes, most significant first, then that many bytes of JSON.
"""

import base64
import contextlib
import json
import os
import socket
import struct
import threading
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnmill.environments.base import Environment
from turnmill.environments.registry import create
from turnmill.environments.rendering import to_png
from turnmill.environments.runtime.episode import TurnEnvironment

LENGTH = struct.Struct(">I")


class WorkerSettings(BaseModel):
    """What an environment process is to run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    task: str | None = None
    max_turns: int = 64
    options: dict[str, Any] = Field(default_factory=dict)
    python: str | None = None
    """Interpreter that runs it, where its packages do not go with turnmill's."""

    invalid_penalty: float = 0.1
    binary_reward: bool = True
    marker_required: bool = True
    memory_limit_bytes: int | None = None


def encode(message: dict[str, Any]) -> bytes:
    """A message as it goes over the socket."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def make_episode(settings: WorkerSettings) -> TurnEnvironment:
    """The environment with the rules of the job around it."""
    return TurnEnvironment(
        create(settings.name, settings.task, settings.max_turns, settings.options),
        invalid_penalty=settings.invalid_penalty,
        binary_reward=settings.binary_reward,
        marker_required=settings.marker_required,
    )


def serve(connection: socket.socket, settings: WorkerSettings) -> None:
    """Make the environment and answer until the other side hangs up."""
    try:
        episode = make_episode(settings)
    except Exception as error:
        connection.sendall(encode({"error": _words(error)}))
        return
    connection.sendall(encode({"ready": os.getpid()}))
    preparation = _Preparation(episode)
    with connection.makefile("rb") as requests:
        while header := requests.read(LENGTH.size):
            request = json.loads(requests.read(LENGTH.unpack(header)[0]))
            if request.get("do") != "act":
                preparation.wait()
            try:
                reply = {"result": answer(episode, request)}
            except Exception as error:
                reply = {"error": _words(error)}
            connection.sendall(encode(reply))
            if isinstance(seed := request.get("next_seed"), int):
                preparation.begin(seed)


class _Preparation:
    """Hides what a reset costs: the next one is prepared while the policy thinks."""

    def __init__(self, episode: TurnEnvironment) -> None:
        self._environment = episode.environment
        self._thread: threading.Thread | None = None

    def begin(self, seed: int) -> None:
        """Prepare a reset with this seed, where the environment knows how to."""
        if type(self._environment).prepare is not Environment.prepare:
            self._thread = threading.Thread(target=self._prepare, args=(seed,), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until nothing is being prepared."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _prepare(self, seed: int) -> None:
        # What goes wrong here goes wrong again at the reset, which tells of it.
        with contextlib.suppress(Exception):
            self._environment.prepare(seed)


def answer(episode: TurnEnvironment, request: dict[str, Any]) -> Any:
    """Do what a request asks."""
    match request:
        case {"do": "reset", "seed": int(seed)}:
            return asdict(episode.reset(seed))
        case {"do": "act", "response": str(response)}:
            return asdict(episode.act(response))
        case {"do": "render"}:
            return base64.b64encode(to_png(episode.environment.render())).decode()
        case {"do": "close"}:
            return episode.environment.close()
        case _:
            raise ValueError(f"An environment process cannot do {request!r}.")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
