"""Checks that the tokens trained on are those that the policy sampled."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby

TOKEN_TYPECODE = "i"
"""Type of a packed token: four bytes."""


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Return token ids as a byte string, four bytes each."""
    return array(TOKEN_TYPECODE, token_ids).tobytes()


def token_checksum(token_ids: Iterable[int]) -> int:
    """Return the CRC-32 of the packed tokens."""
    return zlib.crc32(pack_tokens(token_ids))


def count_unsampled_tokens(rows: Iterable[tuple[Sequence[int], Sequence[int]]], sampled_tokens: bytes) -> int:
    """Count the trained tokens of a trajectory's rows that do not occur among its sampled tokens.

    A row is its token ids and its response mask. Tokens trained without a gap must occur without a gap in
    `sampled_tokens` (packed), each span after the one before.
    """
    unsampled, start = 0, 0
    for ids, mask in rows:
        for span in trained_spans(ids, mask):
            packed = pack_tokens(span)
            found = _find_aligned(sampled_tokens, packed, start)
            if found < 0:
                unsampled += len(span)
            else:
                start = found + len(packed)
    return unsampled


def trained_spans(ids: Sequence[int], mask: Sequence[int]) -> list[list[int]]:
    """Return the runs of tokens whose mask is 1."""
    marked = groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [[token for token, _ in span] for trained, span in marked if trained]


def _find_aligned(sampled_tokens: bytes, packed: bytes, start: int) -> int:
    size = array(TOKEN_TYPECODE).itemsize
    found = sampled_tokens.find(packed, start)
    while found >= 0 and found % size:
        found = sampled_tokens.find(packed, found + 1)
    return found
