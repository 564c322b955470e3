"""Typed payloads in the columns and tags of the TransferQueue."""

import pickle
from typing import TypeVar

Payload = TypeVar("Payload")

TURN_METADATA = "turn_metadata"
"""Column of rows that are turns: a `TurnMetadata`, or the `SegmentMetadata` of a bootstrap row."""


def encode(payload: object) -> bytes:
    """Encode a payload for the queue, as bytes: the queue's own msgpack would turn a dataclass into a dictionary."""
    return pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)


def decode(value: object, kind: type[Payload]) -> Payload:
    """Decode a column's value, which tensordict may have wrapped. Raises TypeError for a payload of another type."""
    data = getattr(value, "data", value)
    payload = pickle.loads(data) if isinstance(data, bytes) else data
    if not isinstance(payload, kind):
        raise TypeError(f"The queue holds a {type(payload).__name__} where a {kind.__name__} is expected.")
    return payload
