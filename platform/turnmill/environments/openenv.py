"""Environments that an OpenEnv server offers: one session over a web socket each."""

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register

NOTHING = ""
"""The default action where none is configured: the server is not asked at all."""

_MAX_MESSAGE_BYTES = 16 * 2**20
_MAX_ERROR_CHARACTERS = 500


class OpenEnvOptions(EnvironmentOptions):
    """Where the server is, and how actions and observations become text."""

    url: str
    """Address of the server, `http://` or `ws://`."""

    action_field: str | None = None
    """Field of the action that the agent's answer goes into; left out, the answer is the whole action, as JSON."""

    action: dict[str, Any] = Field(default_factory=dict)
    """Fields of every action beside that one."""

    observation_field: str | None = None
    """Field of the observation that the agent is told; left out, all of it, as JSON."""

    reset: dict[str, Any] = Field(default_factory=dict)
    """Parameters of every reset beside the seed."""

    actions: list[str] | None = None
    """The answers that are allowed; left out, any."""

    default_action: str | None = None
    """Executed where a response holds no valid action; left out, the first one, or nothing where any is allowed."""

    instruction: str = "Act step by step."
    """What the agent is told of the environment before the first observation."""

    message_timeout_seconds: float = Field(default=20, gt=0)
    """Time that the server may take for an answer; keep it below `environment.stepTimeoutSeconds`."""


@register
class OpenEnv(Environment):
    """An environment on a server that speaks OpenEnv's protocol."""

    name: ClassVar[str] = "openenv"
    Settings: ClassVar[type[EnvironmentOptions]] = OpenEnvOptions

    def __init__(self, task: str | None, max_turns: int, options: OpenEnvOptions) -> None:
        super().__init__(task, max_turns, options)
        self.actions = tuple(dict.fromkeys(name.strip().lower() for name in options.actions or ()))
        self.default_action = options.default_action or (self.actions[0] if self.actions else NOTHING)
        if self.default_action != NOTHING and self.match_action(self.default_action) is None:
            raise SettingsError(
                f"environment.options.defaultAction: {self.default_action!r} is no action. Take one of "
                f"{', '.join(self.actions) or 'those that are JSON objects'}."
            )
        self._socket: Any = None
        self._told = ""

    def reset(self, seed: int) -> str:
        """Begin an episode in the session, with a seed that the server may follow or not."""
        if self._socket is None:
            self._socket = self._connect()
        self._told = self._tell(self._ask("reset", {"seed": seed, **self.options.reset}))
        return self._told

    def step(self, action: str) -> StepResult:
        """Send an action."""
        if action == NOTHING:
            return StepResult(self._told)
        field = self.options.action_field
        fields = json.loads(action) if field is None else {field: action}
        answer = self._ask("step", {**self.options.action, **fields})
        self._told = self._tell(answer)
        reward = answer.get("reward")
        return StepResult(
            self._told,
            reward=float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else 0.0,
            terminated=bool(answer.get("done")),
        )

    def instruction_prompt(self) -> str:
        """What the job says, and the actions."""
        actions = f"\n\nThe actions you can take are: {', '.join(self.actions)}." if self.actions else ""
        return f"{self.options.instruction}{actions}"

    def match_action(self, answer: str) -> str | None:
        """One of the allowed actions, or any text; a JSON object where no field is named for it."""
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

    def _connect(self) -> Any:
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

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self.options.message_timeout_seconds))
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailedError(
                f"The OpenEnv server broke off a {kind}: {error or type(error).__name__}."
            ) from error
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or answer.get("type") != "observation":
            told = found if isinstance(found, dict) else {"message": answer}
            why = " ".join(str(told[key]) for key in ("message", "errors") if told.get(key))[:_MAX_ERROR_CHARACTERS]
            raise EnvironmentFailedError(f"The OpenEnv server refused a {kind}: {why}.")
        return found

    def _tell(self, answer: Mapping[str, Any]) -> str:
        seen, field = answer.get("observation", {}), self.options.observation_field
        if field is not None:
            if not isinstance(seen, Mapping) or field not in seen:
                fields = ", ".join(seen) if isinstance(seen, Mapping) else "none"
                raise SettingsError(
                    f"environment.options.observationField: the observation has no field {field!r}. It has: {fields}."
                )
            seen = seen[field]
        return seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False)
