"""Whether the tokens that are learned from are those that the policy sampled."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby

TOKEN = "i"
"""How a token is packed: four bytes, so that a trajectory's tokens travel as one string."""


def pack(token_ids: Iterable[int]) -> bytes:
    """Tokens as they came from the engine, to travel beside the rows that are made of them."""
    return array(TOKEN, token_ids).tobytes()


def digest(token_ids: Iterable[int]) -> int:
    """A number that other tokens do not have."""
    return zlib.crc32(pack(token_ids))


def count_foreign(rows: Iterable[tuple[Sequence[int], Sequence[int]]], sampled: bytes) -> int:
    """How many trained tokens of a trajectory's rows, given with their masks, do not stand in what was sampled.

    What is trained in one piece must stand there in one piece, each after the one before.
    """
    foreign, start = 0, 0
    for ids, mask in rows:
        for piece in trained_pieces(ids, mask):
            packed = pack(piece)
            found = _find(sampled, packed, start)
            if found < 0:
                foreign += len(piece)
            else:
                start = found + len(packed)
    return foreign


def trained_pieces(ids: Sequence[int], mask: Sequence[int]) -> list[list[int]]:
    """The tokens that are learned from, apart where others stand between them."""
    marked = groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [[token for token, _ in piece] for trained, piece in marked if trained]


def _find(sampled: bytes, packed: bytes, start: int) -> int:
    size = array(TOKEN).itemsize
    found = sampled.find(packed, start)
    while found >= 0 and found % size:
        found = sampled.find(packed, found + 1)
    return found
