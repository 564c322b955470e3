"""Adapter for OpenEnv servers: each environment is a session over a WebSocket."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, JsonValue

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

NOTHING = ""
"""Default action if none is configured: the server is not called at all."""

_MAX_MESSAGE_BYTES = 16 * 2**20
_MAX_ERROR_CHARACTERS = 500


class OpenEnvOptions(EnvironmentOptions):
    """Address of the server, and mapping of actions and observations to text."""

    url: str
    """Address of the server, `http://` or `ws://`."""

    action_field: str | None = None
    """Field of the action that is set to the agent's answer; if omitted, the answer is the whole action, as JSON."""

    action: dict[str, JsonValue] = Field(default_factory=dict)
    """Other fields of every action."""

    observation_field: str | None = None
    """Field of the observation that the agent reads; if omitted, all of it, as JSON."""

    reset: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of every reset besides the seed."""

    actions: list[str] | None = None
    """Answers that are allowed; if omitted, any."""

    default_action: str | None = None
    """Action executed if a response contains no valid one; if omitted, the first one, or none if any is allowed."""

    instruction: str = "Act step by step."
    """Instructions for the agent, before the first observation."""

    message_timeout_seconds: float = Field(default=20, gt=0)
    """Time that the server may take to answer; keep it below `environment.stepTimeoutSeconds`."""


@register
class OpenEnv(Environment):
    """A session of an OpenEnv server."""

    name: ClassVar[str] = "openenv"
    tasks: ClassVar[tuple[str, ...] | None] = ()
    Settings: ClassVar[type[EnvironmentOptions]] = OpenEnvOptions

    def __init__(self, task: str | None, max_turns: int, options: OpenEnvOptions) -> None:
        super().__init__(task, max_turns, options)
        self.actions = tuple(dict.fromkeys(name.strip().lower() for name in options.actions or ()))
        self.default_action = options.default_action or (self.actions[0] if self.actions else NOTHING)
        if self.default_action != NOTHING and self.match_action(self.default_action) is None:
            raise SettingsError(
                f"environment.options.defaultAction: {self.default_action!r} is not an action. Choose "
                f"{', '.join(self.actions) or 'a JSON object'}."
            )
        self._socket: ClientConnection | None = None
        self._last_observation = ""

    def reset(self, seed: int) -> str:
        """Start an episode in the session; the seed is passed to the server, which may ignore it."""
        if self._socket is None:
            self._socket = self._connect()
        self._last_observation = self._observation(self._request("reset", {"seed": seed, **self.options.reset}))
        return self._last_observation

    def step(self, action: str) -> StepResult:
        """Send an action and return the server's observation, reward and end."""
        if action == NOTHING:
            return StepResult(self._last_observation)
        field = self.options.action_field
        fields = json.loads(action) if field is None else {field: action}
        answer = self._request("step", {**self.options.action, **fields})
        self._last_observation = self._observation(answer)
        reward = answer.get("reward")
        return StepResult(
            self._last_observation,
            reward=float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else 0.0,
            terminated=bool(answer.get("done")),
        )

    def instruction_prompt(self) -> str:
        """Return the job's `instruction` and the actions."""
        actions = f"\n\nThe actions you can take are: {', '.join(self.actions)}." if self.actions else ""
        return f"{self.options.instruction}{actions}"

    def match_action(self, answer: str) -> str | None:
        """Return one of the allowed actions, or any text; without `actionField` it must be a JSON object."""
        if self.actions:
            return super().match_action(answer)
        answer = answer.strip()
        if self.options.action_field is not None:
            return answer or None
        try:
            return answer if isinstance(json.loads(answer), dict) else None
        except (ValueError, RecursionError):
            return None

    def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> "ClientConnection":
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        url = self.options.url.rstrip("/")
        address = f"ws{url.removeprefix('http')}" if url.startswith("http") else url
        try:
            return connect(
                f"{address}/ws",
                open_timeout=self.options.message_timeout_seconds,
                max_size=_MAX_MESSAGE_BYTES,
                proxy=None,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailedError(
                f"environment.options.url: no OpenEnv server answers at {url}: {error}. Is it running there?"
            ) from error

    def _request(self, kind: str, data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        from websockets.exceptions import WebSocketException

        assert self._socket is not None, "an episode begins with a reset"
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self.options.message_timeout_seconds))
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailedError(
                f"The connection to the OpenEnv server failed during a {kind}: {error or type(error).__name__}."
            ) from error
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict) or answer.get("type") != "observation":
            failure = content if isinstance(content, dict) else {"message": answer}
            reason = " ".join(str(failure[key]) for key in ("message", "errors") if failure.get(key))
            raise EnvironmentFailedError(f"The OpenEnv server refused a {kind}: {reason[:_MAX_ERROR_CHARACTERS]}.")
        return content

    def _observation(self, answer: Mapping[str, JsonValue]) -> str:
        observation, field = answer.get("observation", {}), self.options.observation_field
        if field is not None:
            if not isinstance(observation, dict) or field not in observation:
                fields = ", ".join(observation) if isinstance(observation, dict) else "none"
                raise SettingsError(
                    f"environment.options.observationField: the observation has no field {field!r}. It has: {fields}."
                )
            observation = observation[field]
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
