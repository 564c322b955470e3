"""Errors that this project raises on purpose; the base classes say what each one ends."""

from typing import ClassVar


class TurnmillError(Exception):
    """Every error that this project raises on purpose."""


class SettingsError(TurnmillError):
    """Settings of the user that cannot work; the message names the value, the rule and the way out."""


class RunFailedError(TurnmillError):
    """A run ended without reaching its last step; `cause` is one word for metrics and status."""

    FINAL_CAUSES: ClassVar[frozenset[str]] = frozenset({"settings", "failed_ratio", "environment"})

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause

    def __reduce__(self) -> tuple[type["RunFailedError"], tuple[str, str]]:
        """Keep `cause` on the way between processes; exceptions pickle their `args` alone."""
        return type(self), (str(self), self.cause)

    @property
    def is_final(self) -> bool:
        """True if another attempt would end in the same way."""
        return self.cause in self.FINAL_CAUSES


class EpisodeError(TurnmillError):
    """One episode cannot go on; it ends with stop reason `failed` and the others carry on."""

    cause: ClassVar[str] = "unknown"


class EnvironmentFailedError(EpisodeError):
    """The environment of an episode died, hung or sent an invalid reply."""

    cause: ClassVar[str] = "environment"


class InferenceError(EpisodeError):
    """The policy's inference engine failed to generate a response."""

    cause: ClassVar[str] = "inference"


class OvertakenError(InferenceError):
    """A later attempt has taken over the episode: its record and its tools' state must not be changed any more."""


class ToolError(TurnmillError):
    """A tool call could not be executed; it had no effect."""

    cause: ClassVar[str] = "tool"


class ToolUnavailableError(ToolError, SettingsError):
    """A tool cannot work on this machine; the message names what to install or set."""


class ToolFailedError(ToolError):
    """Infrastructure behind a tool failed: never an observation, never a reward."""


class SandboxError(ToolError):
    """The sandbox could not run a task."""

    cause: ClassVar[str] = "sandbox"


class StoreError(ToolError):
    """The trajectory store refused or could not be reached."""

    cause: ClassVar[str] = "store"


class StoreUnavailableError(StoreError):
    """The store did not answer within the call's deadline; the same call may be sent again."""

    cause: ClassVar[str] = "store_unavailable"


class StoreFullError(StoreError):
    """The store's memory bound is reached."""

    cause: ClassVar[str] = "store_full"


class StaleClaimError(StoreError):
    """Another server has taken over the call: this one's result is discarded."""

    cause: ClassVar[str] = "stale_claim"


class CallInProgressError(StoreError):
    """Another server is still executing the call, or one before it, at this call's deadline; it may be sent again."""

    cause: ClassVar[str] = "call_in_progress"


class ToolCallError(EpisodeError):
    """A tool call could not be executed on any server within its timeout."""

    cause: ClassVar[str] = "tool_server"


class ToolCallTimeoutError(ToolCallError):
    """No server answered a tool call within its timeout."""

    cause: ClassVar[str] = "tool_timeout"


class ToolCallConnectionError(ToolCallError):
    """No tool server could be reached."""

    cause: ClassVar[str] = "tool_connection"


class ToolCallRefusedError(ToolCallError):
    """A tool server rejected a call; a retry would end in the same way."""

    cause: ClassVar[str] = "tool_refused"


class ToolRaisedError(ToolCallError):
    """A tool raised an exception instead of answering a call."""

    cause: ClassVar[str] = "tool_raised"


class AgentLoopError(EpisodeError):
    """An agent loop of verl or of the user raised an exception."""

    cause: ClassVar[str] = "agent_loop"


class RewardError(EpisodeError):
    """The reward of an answer could not be computed."""

    cause: ClassVar[str] = "reward"
