"""What the gateway needs of an inference engine: tokens in, tokens out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from turnmill.gateway.pictures import Picture


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens that the policy generated."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    policy_versions: tuple[int, int] = (0, 0)
    """Oldest and newest version of the policy that sampled them."""


class Engine(Protocol):
    """An inference engine."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return one response to a prompt, which has all placeholders of its pictures; `sampling` has vLLM's names.

        Requests of one trajectory go to the same engine, where their prefix is cached; `sample` tells several responses
        to one prompt apart. Raises UnavailableError or InferenceError.
        """
