"""Adapter for OpenEnv servers: each environment is a session over a WebSocket."""

import json
from typing import ClassVar

from pydantic import Field, JsonValue

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.openenv.session import OpenEnvSession, Reply, text_of

NOTHING = ""
"""Default action if none is configured: the server is not called at all."""


class OpenEnvOptions(EnvironmentOptions):
    """Address of the server, and mapping of actions and observations to text."""

    url: str
    """Address of the server, `http://` or `ws://`."""

    action_field: str | None = None
    """Field of the action that is set to the agent's answer; if omitted, the answer is the whole action, as JSON."""

    action: dict[str, JsonValue] = Field(default_factory=dict)
    """Other fields of every action."""

    observation_field: str | None = None
    """Field of the observation that the agent reads, `a.b` for a field of a field; if omitted, all of it, as JSON."""

    reset: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of every reset besides the seed."""

    actions: list[str] | None = None
    """Answers that are allowed, in any case; they are sent as they stand here. If omitted, any answer is."""

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
        self._sent = {action.strip().lower(): action.strip() for action in options.actions or ()}
        self.actions = tuple(self._sent)
        self.default_action = options.default_action or (self.actions[0] if self.actions else NOTHING)
        if self.default_action != NOTHING and self.match_action(self.default_action) is None:
            raise SettingsError(
                f"environment.options.defaultAction: {self.default_action!r} is not an action. Choose "
                f"{', '.join(self.actions) or 'a JSON object'}."
            )
        self._session = OpenEnvSession(options.url, options.message_timeout_seconds)
        self._last_observation = ""

    def reset(self, seed: int) -> str:
        """Start an episode in the session; the seed is passed to the server, which may ignore it."""
        return self._observe(self._session.reset({"seed": seed, **self.options.reset}))

    def step(self, action: str) -> StepResult:
        """Send an action and return the server's observation, reward and end."""
        if action == NOTHING:
            return StepResult(self._last_observation)
        action, field = self._sent.get(action.lower(), action), self.options.action_field
        fields = json.loads(action) if field is None else {field: action}
        reply = self._session.step({**self.options.action, **fields})
        return StepResult(self._observe(reply), reward=reply.reward or 0.0, terminated=reply.done)

    def instruction_prompt(self) -> str:
        """Return the job's `instruction` and the actions."""
        actions = f"\n\nThe actions you can take are: {', '.join(self._sent.values())}." if self.actions else ""
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
        self._session.close()

    def _observe(self, reply: Reply) -> str:
        self._last_observation = text_of(reply.observation, self.options.observation_field)
        return self._last_observation
