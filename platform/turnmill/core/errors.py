"""What may go wrong on purpose, and what each error ends."""

from typing import ClassVar


class TurnmillError(Exception):
    """Every error that this project raises on purpose."""


class SettingsError(TurnmillError):
    """The user's settings cannot work; the message names the value, the rule and the way out."""


class RunFailedError(TurnmillError):
    """A run ended without reaching its last step; `cause` is one word for metrics and status."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause

    def __reduce__(self) -> tuple[type["RunFailedError"], tuple[str, str]]:
        """Keep `cause` on the way between processes; exceptions pickle their `args` alone."""
        return type(self), (str(self), self.cause)


class EpisodeError(TurnmillError):
    """One episode cannot go on; it ends with stop reason `failed` and the others carry on."""

    cause: ClassVar[str] = "unknown"


class EnvironmentFailedError(EpisodeError):
    """The environment of an episode died, hung or answered nonsense."""

    cause: ClassVar[str] = "environment"


class InferenceError(EpisodeError):
    """The policy could not answer."""

    cause: ClassVar[str] = "inference"
