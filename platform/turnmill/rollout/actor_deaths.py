"""What calls of a Ray actor raise once it has died."""

from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

DEATHS: tuple[type[RayError], ...] = (ActorDiedError, OutOfMemoryError)
"""The second if Ray has killed it to save the machine's memory."""

LOSSES: tuple[type[RayError], ...] = (*DEATHS, RayActorError)
"""Also of one that is out of reach, and may come back."""


def is_death(error: BaseException) -> bool:
    """Return whether a call failed as its actor has died, or the core process of an engine, with which it ends."""
    return isinstance(error, DEATHS) or (isinstance(error, RayTaskError) and isinstance(error.cause, EngineDeadError))
