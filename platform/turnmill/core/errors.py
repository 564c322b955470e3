"""Errors that this project raises on purpose; a base class says what its errors end: a run, an episode or a call."""

from typing import ClassVar


class TurnmillError(Exception):
    """Base class of all errors that this project raises on purpose."""


class SettingsError(TurnmillError):
    """Invalid settings of the user; the message names the value, the rule and the way out."""


class RunFailedError(TurnmillError):
    """A run ended before its last step; `cause` is one word for metrics and status."""

    FINAL_CAUSES: ClassVar[frozenset[str]] = frozenset({"settings", "failed_ratio", "environment"})

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause

    def __reduce__(self) -> tuple[type["RunFailedError"], tuple[str, str]]:
        """Keep `cause` when pickled: exceptions pickle only their `args`."""
        return type(self), (str(self), self.cause)

    @property
    def is_final(self) -> bool:
        """True if another attempt would end in the same way."""
        return self.cause in self.FINAL_CAUSES


class EpisodeError(TurnmillError):
    """An episode ends with stop reason `failed`; other episodes go on."""

    cause: ClassVar[str] = "unknown"


class EnvironmentFailedError(EpisodeError):
    """The environment of an episode died, hung or sent an invalid reply."""

    cause: ClassVar[str] = "environment"


class OtherReplayError(TurnmillError):
    """An environment answers otherwise than it did when the turns in the journal were played."""


class InferenceError(EpisodeError):
    """The policy's inference engine failed to generate a response."""

    cause: ClassVar[str] = "inference"


class OvertakenError(InferenceError):
    """A later attempt has taken over the episode, whose journal and tool state must no longer be changed."""


class ToolError(TurnmillError):
    """A tool call could not be executed; it had no effect."""

    cause: ClassVar[str] = "tool"
    is_final: ClassVar[bool] = False
    """True if a repeat of the call would fail in the same way: its trajectory has failed."""


class ToolUnavailableError(ToolError, SettingsError):
    """A tool cannot work on this machine; the message names what to install or set."""


class ToolFailedError(ToolError):
    """Infrastructure behind a tool failed; this never becomes an observation or a reward."""


class SandboxError(ToolError):
    """The sandbox could not run a task."""

    cause: ClassVar[str] = "sandbox"


class StoreError(ToolError):
    """The trajectory store refused a request, or could not be reached."""

    cause: ClassVar[str] = "store"


class StoreUnavailableError(StoreError):
    """The store did not answer within the call's deadline; the call may be repeated."""

    cause: ClassVar[str] = "store_unavailable"


class StoreFullError(StoreError):
    """The store's memory limit is reached."""

    cause: ClassVar[str] = "store_full"


class StaleClaimError(StoreError):
    """Another server has taken over the call, so the result of this server is discarded."""

    cause: ClassVar[str] = "stale_claim"


class NoTrajectoryError(StaleClaimError):
    """The store has no trajectory of this name any more: it has expired, was deleted, or the store has lost it."""


class OtherTurnsError(StaleClaimError):
    """The store lost turns that this process knows, and another process went on without them."""


class CallInProgressError(StoreError):
    """At the deadline, another server still executes this call or an earlier one; the call may be repeated."""

    cause: ClassVar[str] = "call_in_progress"


class CallTimeoutError(ToolError):
    """A tool did not end within the time that the client gives it."""

    cause: ClassVar[str] = "timeout"


class PoisonCallError(StoreError):
    """Servers died while they executed the call: it is not executed again."""

    cause: ClassVar[str] = "poison_call"
    is_final: ClassVar[bool] = True


class LostWriteError(StoreError):
    """The store lost state of a tool that it had acknowledged: what is left is older than what the trajectory saw."""

    cause: ClassVar[str] = "lost_write"
    is_final: ClassVar[bool] = True


class CallMismatchError(StoreError):
    """A call with this id was executed with another action."""

    cause: ClassVar[str] = "call_mismatch"
    is_final: ClassVar[bool] = True


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
    """A tool server rejected a call; repeating it would have the same result."""

    cause: ClassVar[str] = "tool_refused"


class ToolCallPoisonError(ToolCallRefusedError):
    """Tool servers died of a call, and the next one refused it."""

    cause: ClassVar[str] = "tool_poison"


class ToolCallLostWriteError(ToolCallRefusedError):
    """The tool servers' store lost an earlier call of the trajectory."""

    cause: ClassVar[str] = "tool_lost_write"


class ToolCallChangedError(ToolCallLostWriteError):
    """A call that the tool servers' store had lost, sent again, got another observation."""


class ToolRaisedError(ToolCallError):
    """A tool raised an exception instead of answering a call."""

    cause: ClassVar[str] = "tool_raised"


class AgentLoopError(EpisodeError):
    """An agent loop of verl or of the user raised an exception."""

    cause: ClassVar[str] = "agent_loop"


class RewardError(EpisodeError):
    """The reward of an answer could not be computed."""

    cause: ClassVar[str] = "reward"


class HarnessError(EpisodeError):
    """The program of a trajectory could not run, ran out of time, or gave no reward."""

    cause: ClassVar[str] = "harness"


OUTAGE_CAUSES = frozenset(
    error.cause
    for error in (
        InferenceError,
        StoreUnavailableError,
        ToolCallConnectionError,
        ToolCallError,
        ToolCallLostWriteError,
        ToolCallTimeoutError,
    )
)
"""Causes of failed episodes that pass by themselves: something is away or too slow, or the store lost a second."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
