"""Checks that the tokens trained on are those that the policy sampled."""

import zlib
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

TOKEN_TYPECODE = "i"
"""Type of a packed token: four bytes."""

_TOKEN_BYTES = array(TOKEN_TYPECODE).itemsize


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Return token ids as a byte string, four bytes each."""
    return array(TOKEN_TYPECODE, token_ids).tobytes()


def token_checksum(token_ids: Iterable[int], before: int = 0) -> int:
    """Return the CRC-32 of the packed tokens; `before` is that of tokens that stand before them."""
    return zlib.crc32(pack_tokens(token_ids), before)


def array_checksum(token_ids: npt.NDArray[np.integer]) -> int:
    """Return `token_checksum` of token ids in an array."""
    return zlib.crc32(token_ids.astype(np.intc).tobytes())


def count_unsampled_tokens(rows: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], sampled_tokens: bytes) -> int:
    """Count the trained tokens of a trajectory's rows that do not occur among its sampled tokens.

    A row is its token ids and its response mask. Tokens trained without a gap must occur without a gap in
    `sampled_tokens` (packed), each span after the one before.
    """
    unsampled, start = 0, 0
    for ids, mask in rows:
        packed_ids = np.asarray(ids).astype(np.intc).tobytes()
        for first, end in _trained_spans(mask):
            packed = packed_ids[first * _TOKEN_BYTES : end * _TOKEN_BYTES]
            found = _find_aligned(sampled_tokens, packed, start)
            if found < 0:
                unsampled += end - first
            else:
                start = found + len(packed)
    return unsampled


def _trained_spans(mask: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return the first position of each run of tokens whose mask is not 0, and the position after its last."""
    edges = np.flatnonzero(np.diff(np.asarray(mask) != 0, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _find_aligned(sampled_tokens: bytes, packed: bytes, start: int) -> int:
    if sampled_tokens.startswith(packed, start):
        return start
    found = sampled_tokens.find(packed, start)
    while found >= 0 and found % _TOKEN_BYTES:
        found = sampled_tokens.find(packed, found + 1)
    return found
