"""Environments of tools written for verl-tool as bytes.

An environment that JSON holds unchanged is JSON. Any other one, such as a dict with keys that are no strings, is
msgpack after a byte with which neither JSON nor msgpack begins.
"""

import json

import msgpack

_MARK = b"\xc1"
_CONTAINERS: tuple[type, ...] = (tuple, set, frozenset)
_LARGE_INTEGER = len(_CONTAINERS)


def pack(environment: object) -> bytes:
    """Pack an environment. Raises TypeError, ValueError or OverflowError for values that cannot be packed."""
    as_json = _to_json(environment)
    if as_json is not None and _is_kept(json.loads(as_json), environment):
        return as_json
    try:
        return _MARK + _to_msgpack(environment)
    except TypeError:
        # Of a type that derives from one of JSON's, such as a named tuple.
        if as_json is None:
            raise
        return as_json


def unpack(packed: bytes) -> object:
    """Return the environment that was packed."""
    if not packed.startswith(_MARK):
        loaded: object = json.loads(packed)
        return loaded
    return _from_msgpack(packed[len(_MARK) :])


def _to_json(value: object) -> bytes | None:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError):
        return None


def _is_kept(read: object, written: object) -> bool:
    """Return True if a value that was read from JSON equals the one that was written, also in its containers."""
    if isinstance(read, dict) and isinstance(written, dict):
        pairs = zip(read.items(), written.items(), strict=False)
        return len(read) == len(written) and all(a == c and _is_kept(b, d) for (a, b), (c, d) in pairs)
    if isinstance(read, list) and isinstance(written, list):
        return len(read) == len(written) and all(map(_is_kept, read, written))
    return read == written


def _to_msgpack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, default=_pack_container, strict_types=True)
    return packed


def _pack_container(value: object) -> object:
    if isinstance(value, dict):
        return dict(value)
    if type(value) is int:
        return msgpack.ExtType(_LARGE_INTEGER, str(value).encode())
    for code, container in enumerate(_CONTAINERS):
        if type(value) is container:
            return msgpack.ExtType(code, _to_msgpack(list(value)))  # type: ignore[call-overload]
    raise TypeError(f"an object of type {type(value).__name__}")


def _from_msgpack(packed: bytes) -> object:
    value: object = msgpack.unpackb(packed, ext_hook=_unpack_container, strict_map_key=False)
    return value


def _unpack_container(code: int, packed: bytes) -> object:
    return int(packed) if code == _LARGE_INTEGER else _CONTAINERS[code](_from_msgpack(packed))
