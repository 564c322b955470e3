"""Packs named byte strings into one: the arguments and results of sandboxed functions."""

import struct
from collections.abc import Mapping

_HEADER = struct.Struct("<IQ")


def pack(parts: Mapping[str, bytes]) -> bytes:
    """Concatenate the parts, each preceded by the lengths of its name and value."""
    pieces: list[bytes] = []
    for name, value in parts.items():
        encoded = name.encode("utf-8", "surrogateescape")
        pieces += (_HEADER.pack(len(encoded), len(value)), encoded, value)
    return b"".join(pieces)


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the parts; raises ValueError if the data is truncated."""
    parts: dict[str, bytes] = {}
    position = 0
    while position < len(data):
        start = position + _HEADER.size
        if start > len(data):
            raise ValueError("The header of a part is truncated.")
        name_length, value_length = _HEADER.unpack_from(data, position)
        middle, position = start + name_length, start + name_length + value_length
        if position > len(data):
            raise ValueError(f"A part of {name_length + value_length} bytes is truncated to {len(data) - start}.")
        parts[data[start:middle].decode("utf-8", "surrogateescape")] = data[middle:position]
    return parts
