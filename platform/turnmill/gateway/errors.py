"""Errors with which the gateway refuses a request; each API has its own form for them."""

from typing import ClassVar

from turnmill.core.errors import TurnmillError


class GatewayError(TurnmillError):
    """A request gets no answer. Clients repeat a request with status 5xx, and no other."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"


class RequestError(GatewayError):
    """A request that no repeat can mend."""


class ContextLengthError(GatewayError):
    """A prompt that leaves no room for an answer."""

    code: ClassVar[str] = "context_length_exceeded"


class TurnLimitError(GatewayError):
    """A trajectory that has all the turns that it may have."""

    code: ClassVar[str] = "turn_limit_exceeded"


class UnknownKeyError(GatewayError):
    """A key of no trajectory in flight."""

    status: ClassVar[int] = 401
    code: ClassVar[str] = "invalid_api_key"


class StaleTrajectoryError(GatewayError):
    """A trajectory that a later attempt has taken over, or that has ended: its record must not change."""

    status: ClassVar[int] = 403
    code: ClassVar[str] = "stale_trajectory"


class NotFoundError(GatewayError):
    """A path or a model that does not exist."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "not_found"


class BodySizeError(GatewayError):
    """A body larger than the limit."""

    status: ClassVar[int] = 413
    code: ClassVar[str] = "request_too_large"


class UnavailableError(GatewayError):
    """Engine or store failed; a repeat may succeed, and samples nothing twice."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "unavailable"
