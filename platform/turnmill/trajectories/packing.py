"""Turns as bytes: tokens and log-probs as arrays, everything else as msgpack."""

import sys
from array import array
from dataclasses import fields
from typing import Any

import msgpack

from turnmill.core.trajectory import Turn

INTEGERS = 1
"""msgpack extension type: little-endian 32-bit integers without sign."""

FLOATS = 2
"""msgpack extension type: little-endian 64-bit floating-point numbers."""

_TYPECODES = {INTEGERS: "I", FLOATS: "d"}
_FIELDS = frozenset(field.name for field in fields(Turn))


def pack_turn(turn: Turn) -> bytes:
    """A turn as bytes; equal turns make equal bytes."""
    values = {name: _packable(getattr(turn, name)) for name in sorted(_FIELDS)}
    # A policy may write anything, also halves of surrogate pairs.
    packed: bytes = msgpack.packb(values, unicode_errors="surrogatepass")
    return packed


def unpack_turn(data: bytes) -> Turn:
    """The turn that `pack_turn` packed; fields that this version does not know are left out."""
    values = msgpack.unpackb(data, ext_hook=_numbers, unicode_errors="surrogatepass")
    return Turn(**{name: value for name, value in values.items() if name in _FIELDS})


def _packable(value: Any) -> Any:
    if not isinstance(value, tuple):
        return dict(sorted(value.items())) if hasattr(value, "items") else value
    kind = FLOATS if any(isinstance(number, float) for number in value) else INTEGERS
    numbers = array(_TYPECODES[kind], value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return msgpack.ExtType(kind, numbers.tobytes())


def _numbers(kind: int, data: bytes) -> tuple[Any, ...]:
    numbers = array(_TYPECODES[kind])
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)
