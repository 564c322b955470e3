"""Typed payloads in the columns and tags of the TransferQueue."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from types import GenericAlias
from typing import TypeVar

import msgspec

Payload = TypeVar("Payload")

TURN_METADATA = "turn_metadata"
"""Column of rows that are turns: a `TurnMetadata`, or the `SegmentMetadata` of a bootstrap row."""

_AFTER_NAME = b"\0"
"""Separates the name of a payload's type from its msgpack."""

_DECODED_AT_ONCE = 4096


def encode(payload: object) -> bytes:
    """Encode a dataclass for the queue, as bytes: the queue's own msgpack would turn it into a dictionary.

    In msgpack, which is decoded in a third of a pickle's time; as a pickle if msgpack would not give the same values.
    """
    kind = type(payload)
    try:
        encoded = msgspec.msgpack.encode(payload)
        if _decoder(kind).decode(encoded) == payload:
            return kind.__name__.encode() + _AFTER_NAME + encoded
    except (TypeError, UnicodeEncodeError, msgspec.ValidationError):
        pass
    return pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)


def decode(value: object, kind: type[Payload]) -> Payload:
    """Decode a column's value, which tensordict may have wrapped. Raises TypeError for a payload of another type."""
    payload = getattr(value, "data", value)
    if isinstance(payload, bytes):
        payload = pickle.loads(payload) if payload.startswith(pickle.PROTO) else _of_msgpack(payload, kind)
    if not isinstance(payload, kind):
        raise TypeError(f"The queue holds a {type(payload).__name__} where a {kind.__name__} is expected.")
    return payload


def decode_all(values: Sequence[object], kind: type[Payload]) -> tuple[Payload, ...]:
    """Decode many values, which takes less time than one after another. Raises TypeError for one of another type."""
    parts = (values[first : first + _DECODED_AT_ONCE] for first in range(0, len(values), _DECODED_AT_ONCE))
    return tuple(chain.from_iterable(_decode_part(part, kind) for part in parts))


def _decode_part(values: Sequence[object], kind: type[Payload]) -> Iterable[Payload]:
    name = kind.__name__.encode() + _AFTER_NAME
    encoded = [value[len(name) :] for value in values if isinstance(value, bytes) and value.startswith(name)]
    if len(encoded) < len(values):
        return [decode(value, kind) for value in values]
    found: list[Payload] = msgspec.msgpack.decode(
        msgspec.msgpack.encode([*map(msgspec.Raw, encoded)]), type=GenericAlias(list, (kind,))
    )
    return found


def _of_msgpack(payload: bytes, kind: type[object]) -> object:
    end = payload.index(_AFTER_NAME)
    name = payload[:end].decode()
    if name != kind.__name__ and name not in (each.__name__ for each in _kinds(kind)):
        raise TypeError(f"The queue holds a {name} where a {kind.__name__} is expected.")
    return _decoder(kind).decode(payload[end + 1 :])


def _kinds(kind: type[object]) -> Iterator[type[object]]:
    """Yield a type and those that are made of it."""
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


_decoder: Callable[[type[object]], msgspec.msgpack.Decoder[object]] = cache(msgspec.msgpack.Decoder)  # type: ignore[assignment]
