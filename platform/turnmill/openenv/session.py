"""A session of an OpenEnv server: an environment of its own, over a WebSocket."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from turnmill.core.errors import EnvironmentFailedError, SettingsError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]

FULL = "CAPACITY_REACHED"
"""Code of the error of a server whose sessions are all taken."""

PAUSE_SECONDS = 0.5
CLOSE_SECONDS = 5.0

_MAX_MESSAGE_BYTES = 16 * 2**20
_MAX_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment answers to a reset or a step."""

    observation: Json
    reward: float | None
    done: bool


class ServerRefusedError(EnvironmentFailedError):
    """The server answered with an error; `code` is its word for it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class SessionLostError(EnvironmentFailedError):
    """The connection is closed, and with it the session."""


class OpenEnvSession:
    """A session, which begins with its first reset. Whatever fails it ends it: its state cannot be had again."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """Take the address of the server, and the time that it may take to answer."""
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self._socket: ClientConnection | None = None

    def reset(self, parameters: Mapping[str, Json]) -> Reply:
        """Begin an episode, in a new session if the last one has ended. Raises EnvironmentFailedError.

        While all sessions of the server are taken, it is asked again: one that has just ended may not be free yet.
        """
        last_try = time.monotonic() + self.timeout_seconds
        while True:
            is_new = self._socket is None
            if is_new:
                self._socket = self._connect()
            try:
                return _reply(self._request("reset", parameters))
            except SessionLostError:
                # Between two episodes, nothing is lost with it.
                if is_new:
                    raise
            except ServerRefusedError as error:
                if error.code != FULL or time.monotonic() >= last_try:
                    raise
                time.sleep(PAUSE_SECONDS)

    def step(self, action: Mapping[str, Json]) -> Reply:
        """Send an action. Raises EnvironmentFailedError."""
        return _reply(self._request("step", action))

    def tools(self) -> list[JsonObject]:
        """Return the tools of an MCP environment, as MCP lists them. Raises EnvironmentFailedError if it has none."""
        answer = self._request("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        result = answer.get("result")
        tools = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list) or not tools:
            raise EnvironmentFailedError(
                f"The OpenEnv server at {self.url} lists no tools: {_reason(answer.get('error') or answer)}. It is no "
                "MCP environment: take type verlog with the environment `openenv`, whose actions are texts."
            )
        return [tool for tool in tools if isinstance(tool, dict)]

    def close(self) -> None:
        """End the session, and wait until the server has freed it, as far as it says so in time."""
        if (socket := self._socket) is None:
            return
        self._socket = None
        with suppress(Exception):
            socket.send(json.dumps({"type": "close"}))
            socket.recv(timeout=CLOSE_SECONDS)
        socket.close()

    def _connect(self) -> "ClientConnection":
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        address = f"ws{self.url.removeprefix('http')}" if self.url.startswith("http") else self.url
        try:
            return connect(
                f"{address}/ws",
                open_timeout=self.timeout_seconds,
                close_timeout=CLOSE_SECONDS,
                max_size=_MAX_MESSAGE_BYTES,
                proxy=None,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailedError(
                f"environment.options.url: no OpenEnv server answers at {self.url}: {error}. Is it running there?"
            ) from error

    def _request(self, kind: str, data: Mapping[str, Json]) -> JsonObject:
        try:
            return self._exchange(json.dumps({"type": kind, "data": dict(data)}), kind)
        except EnvironmentFailedError:
            # An answer that comes later would be taken for that to the next request.
            self._abandon()
            raise

    def _exchange(self, message: str, kind: str) -> JsonObject:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        assert self._socket is not None, "an episode begins with a reset"
        try:
            # A server that refuses a session says why before it closes the connection.
            with suppress(ConnectionClosed):
                self._socket.send(message)
            answer = json.loads(self._socket.recv(timeout=self.timeout_seconds))
        except (OSError, WebSocketException, ValueError) as error:
            lost = SessionLostError if isinstance(error, ConnectionClosed) else EnvironmentFailedError
            raise lost(
                f"The connection to the OpenEnv server failed during a {kind}: {error or type(error).__name__}. The "
                "session is lost."
            ) from error
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict) or answer.get("type") != ("mcp" if kind == "mcp" else "observation"):
            failure = content if isinstance(content, dict) else {"message": answer}
            code = str(failure.get("code", ""))
            way_out = " Let the server have more sessions, or play fewer episodes at once." if code == FULL else ""
            raise ServerRefusedError(f"The OpenEnv server refused a {kind}: {_reason(failure)}.{way_out}", code)
        return content

    def _abandon(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def text_of(observation: Json, field: str | None) -> str:
    """Return an observation as text: one of its fields, `a.b` for a field of a field, or all of it.

    Raises SettingsError if there is no such field.
    """
    for name in field.split(".") if field is not None else ():
        if not isinstance(observation, dict) or name not in observation:
            fields = ", ".join(observation) if isinstance(observation, dict) else "none"
            raise SettingsError(
                f"environment.options.observationField: the observation has no field {name!r}. It has: {fields}."
            )
        observation = observation[name]
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def _reply(content: JsonObject) -> Reply:
    reward = content.get("reward")
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise EnvironmentFailedError(f"The OpenEnv server gave a reward that is no finite number: {reward!r}.")
    done = bool(content.get("done"))
    return Reply(content.get("observation", {}), None if reward is None else float(reward), done)


def _reason(failure: Json) -> str:
    if not isinstance(failure, dict):
        return str(failure)[:_MAX_ERROR_CHARACTERS]
    told = [str(failure[key]) for key in ("code", "message", "errors") if failure.get(key)]
    return " ".join(told or [json.dumps(failure)])[:_MAX_ERROR_CHARACTERS].rstrip(".")
