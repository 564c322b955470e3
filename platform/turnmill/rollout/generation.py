"""Generation of responses by verl's client of the inference engines, each with a seed of its own."""

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from vllm.sampling_params import RequestOutputKind

from turnmill.core.errors import InferenceError
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.rollout.verl_types import LLMClient

STARTS, RESPONSES = 1, 4
"""Trajectories that begin, and responses that are read, in one iteration of an event loop: some milliseconds."""


class SampledEpisode(Protocol):
    """An episode whose responses are sampled."""

    name: str
    sampling_stream: str


async def generate(
    client: LLMClient,
    trajectory: str,
    prompt_ids: Sequence[int],
    sampling_params: Mapping[str, object],
    *,
    seed: int,
    timeout_seconds: float,
    **media: object,
) -> TokenOutput:
    """Return the response to a prompt; all requests of a trajectory go to one engine, where their prefix is cached.

    `trajectory` is unique in an attempt, so that every trajectory begins on the engine with the fewest requests.
    Raises InferenceError, naming the trajectory, where no token comes within the timeout.
    """
    params = {
        # Only the final tokens are needed: vLLM's work per token, on by default, would double the cost.
        "detokenize": False,
        **sampling_params,
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "seed": seed,
    }
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await client.generate(
                request_id=trajectory, prompt_ids=prompt_ids, sampling_params=params, **media
            )
    except TimeoutError as error:
        raise InferenceError(f"{trajectory}: the policy generated no response within {timeout_seconds:g} s") from error
    if not output.token_ids:
        raise InferenceError(f"{trajectory}: the policy generated no token ({output.stop_reason})")
    return output


def is_truncated(token_ids: Sequence[int], *, max_tokens: int, stop_token_ids: Collection[int | None]) -> bool:
    """Return whether the token limit ended a response, judged by its tokens: verl's clients do not tell."""
    return len(token_ids) >= max_tokens and token_ids[-1] not in stop_token_ids


def policy_versions(output: TokenOutput) -> tuple[int, int]:
    """Return the oldest and the newest policy version that sampled tokens of a response."""
    oldest, newest = (output.extra_fields.get(name) or 0 for name in ("min_global_steps", "max_global_steps"))
    return int(oldest), int(newest)


def sampling_seed(run_seed: int, stream: str, slot: int, turn: int) -> int:
    """Return the seed of one turn: it differs between turns, and does not depend on what else is in flight."""
    return _seed(run_seed, stream, slot, turn)


def seed_at_position(seed: int, position: int) -> int:
    """Return the seed for continuing, at a token position, a response that has `seed` as a whole."""
    return _seed(seed, position)


def _seed(*parts: object) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
