"""Binary encoding of the store's records: tokens and log-probs as arrays, everything else as msgpack."""

import sys
from array import array
from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

import msgpack

from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn

INTEGERS = 1
"""msgpack extension type: little-endian 32-bit integers without sign."""

FLOATS = 2
"""msgpack extension type: little-endian 64-bit floating-point numbers."""

_TYPECODES = {INTEGERS: "I", FLOATS: "d"}
_FIELDS: dict[type, frozenset[str]] = {
    kind: frozenset(field.name for field in fields(kind)) for kind in (Turn, TrajectoryMetadata, TrajectoryOutcome)
}
_NOT_IN_0_1 = frozenset({"tool_version", "images"})
"""Fields that are left out while they are empty: records are then as 0.1 writes them."""

Record = TypeVar("Record", Turn, TrajectoryMetadata, TrajectoryOutcome)


def pack(record: Record) -> bytes:
    """Encode a record; equal records have equal encodings."""
    values = {
        name: _packable(value)
        for name in sorted(_FIELDS[type(record)])
        if (value := getattr(record, name)) or name not in _NOT_IN_0_1
    }
    # A policy may write anything, also halves of surrogate pairs.
    packed: bytes = msgpack.packb(values, unicode_errors="surrogatepass")
    return packed


def unpack(kind: type[Record], data: bytes) -> Record:
    """Decode a record; fields that this version does not know are dropped."""
    values = msgpack.unpackb(data, ext_hook=_numbers, unicode_errors="surrogatepass")
    names = _FIELDS[kind]
    known = {name: value for name, value in values.items() if name in names}
    # Lists are those of files.
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return kind(**known | lists)


def _packable(value: object) -> object:
    if not isinstance(value, tuple):
        return dict(sorted(value.items())) if isinstance(value, Mapping) else value
    if value and isinstance(value[0], bytes):
        return list(value)
    kind = INTEGERS
    try:
        numbers = array(_TYPECODES[kind], value)
    except TypeError:
        # It takes no fractions.
        kind = FLOATS
        numbers = array(_TYPECODES[kind], value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return msgpack.ExtType(kind, numbers.tobytes())


def _numbers(kind: int, data: bytes) -> tuple[int | float, ...]:
    numbers = array(_TYPECODES[kind])
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)
