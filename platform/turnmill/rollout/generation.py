"""Asking the policy, by verl's client of the inference engines."""

import asyncio
import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput
from vllm.sampling_params import RequestOutputKind

from turnmill.core.errors import InferenceError

NUM_SLOTS = 256


async def ask(
    client: Any,
    slot: int,
    prompt_ids: Sequence[int],
    sampling: Mapping[str, Any],
    *,
    seed: int,
    seconds: float,
    whose: str,
    **media: Any,
) -> TokenOutput:
    """The response to a prompt; requests of one slot stay with one server, where their prefix is cached.

    Raises InferenceError, naming whose request it was, where no token comes within the seconds.
    """
    parameters = {
        # The tokens are wanted at the end, and as tokens: what vLLM does per token by default costs as much again.
        "detokenize": False,
        **sampling,
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "seed": seed,
    }
    try:
        async with asyncio.timeout(seconds):
            output: TokenOutput = await client.generate(
                request_id=f"slot-{slot}", prompt_ids=prompt_ids, sampling_params=parameters, **media
            )
    except TimeoutError as error:
        raise InferenceError(f"{whose}: the policy did not answer in time") from error
    if not output.token_ids:
        raise InferenceError(f"{whose}: the policy answered with no token ({output.stop_reason})")
    return output


def is_cut_off(token_ids: Sequence[int], *, max_tokens: int, end_ids: Collection[int | None]) -> bool:
    """Whether the limit of tokens ended a response, as its tokens tell: verl's clients do not tell it apart."""
    return len(token_ids) >= max_tokens and token_ids[-1] not in end_ids


def slot_of(trajectory: str) -> int:
    """The slot of a trajectory that has none by itself."""
    return zlib.crc32(trajectory.encode()) % NUM_SLOTS


def sampling_seed(run_seed: int, stream: str, slot: int, turn: int) -> int:
    """A seed of its own for every turn of a run, so that a turn does not depend on what else is in flight."""
    return _seed(run_seed, stream, slot, turn)


def seed_from(seed: int, position: int) -> int:
    """The seed of what is sampled from the token at that position on, within what has the seed as a whole."""
    return _seed(seed, position)


def _seed(*parts: object) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
