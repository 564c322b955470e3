"""Messages of OpenEnv's protocol: requests, observations, states and errors."""

import json
import math
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turnmill.core.errors import TurnmillError

JsonObject = Mapping[str, JsonValue]

MAX_SEED = 2**31 - 1

ErrorCode = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
]


class ProtocolError(TurnmillError):
    """A request could not be executed; the client gets a code, the message and further fields."""

    def __init__(self, code: ErrorCode, message: str, **fields: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields

    def as_message(self) -> JsonObject:
        """Return the error as the client gets it over the WebSocket."""
        return {"type": "error", "data": {"message": str(self), "code": self.code, **self.fields}}


class SessionEndError(ProtocolError):
    """A session ends, or does not begin."""


class TextAction(BaseModel):
    """An action of the agent."""

    model_config = ConfigDict(extra="forbid")

    action: str = Field(description="The action in plain text, or a response that ends with `ACTION:` and the action.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Ignored.")


class TextObservation(BaseModel):
    """What the agent reads, and how its action turned out."""

    model_config = ConfigDict(extra="forbid")

    done: bool = Field(default=False, description="True if the episode is over.")
    reward: float | None = Field(default=None, description="Reward of the action; null after a reset.")
    text: str = Field(description="What the agent observes.")
    instruction: str = Field(description="Role, goal and actions, for a model that has never seen the environment.")
    actions: list[str] = Field(description="All valid actions; empty if `instruction` or `text` describes them.")
    action: str | None = Field(default=None, description="The action that was executed; null after a reset.")
    action_is_valid: bool | None = Field(
        default=None, description="False if no valid action was given, and a default action executed in its place."
    )
    metadata: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="`seed`; after an action also `terminated`, `truncated` and numbers of the environment, `info`.",
    )


class EpisodeState(BaseModel):
    """The episode of a session."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str | None = Field(default=None, description="Name of the episode; null if there is none.")
    step_count: int = Field(default=0, ge=0, description="Number of actions so far.")
    seed: int | None = Field(default=None, description="Seed of the episode.")
    done: bool = Field(default=False, description="True if the episode is over.")

    @property
    def in_progress(self) -> bool:
        """True if there is an episode that is not over."""
        return self.episode_id is not None and not self.done


class ResetRequest(BaseModel):
    """Start of an episode. Parameters that environments of turnmill do not know are ignored, as by OpenEnv."""

    seed: int | None = Field(default=None, ge=0, le=MAX_SEED, strict=True)
    """Seed of the episode; if omitted, a random one of training."""

    episode_id: str | None = Field(default=None, max_length=255)
    """Name of the episode; if omitted, a random one."""


class StepRequest(BaseModel):
    """Body of `POST /step`."""

    action: TextAction


class ResetMessage(BaseModel):
    """Start an episode."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["reset"]
    data: ResetRequest = Field(default_factory=ResetRequest)


class StepMessage(BaseModel):
    """Execute an action."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["step"]
    data: TextAction


class StateMessage(BaseModel):
    """Ask for the state."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["state"]


class CloseMessage(BaseModel):
    """End the session."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["close"]


ClientMessage = ResetMessage | StepMessage | StateMessage | CloseMessage

MESSAGES: Mapping[str, type[ClientMessage]] = {
    "reset": ResetMessage,
    "step": StepMessage,
    "state": StateMessage,
    "close": CloseMessage,
}


def observation_data(observation: TextObservation) -> dict[str, JsonValue]:
    """Return an observation as OpenEnv sends it: reward and end beside its other fields, metadata in both places."""
    fields = observation.model_dump(exclude={"reward", "done"})
    return {
        "observation": fields,
        "reward": observation.reward,
        "done": observation.done,
        "metadata": observation.metadata,
    }


def finite(numbers: Mapping[str, float]) -> dict[str, JsonValue]:
    """Return numbers for JSON, which has no word for infinite ones: they become null."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def json_text(data: JsonObject) -> str:
    """Return JSON in ASCII, which can carry every text that an environment returns."""
    return json.dumps(data)
