"""Files of one JSON object per line, which can be read while they are written."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from turnmill.observability import atomic_files


def encode(record: Mapping[str, Any]) -> bytes:
    """Encode an object as one line of strict JSON; NaN and infinities become null."""
    try:
        return msgspec.json.encode(record) + b"\n"
    except (TypeError, ValueError, OverflowError):
        # Scalars of arrays, and text that is no Unicode.
        text = json.dumps(_plain(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", errors="replace") + b"\n"


def decode(line: bytes, first_key: str) -> dict[str, Any] | None:
    """Decode the object of one line; None if its writer was killed before it had written all of it.

    The next writer appends to such an incomplete line. `first_key`, the first key of every object in the file, shows
    where its object begins; inside a string the quotes around it would be escaped.
    """
    record = _parse(line)
    if record is None:
        start = line.rfind(f'{{"{first_key}":'.encode())
        record = _parse(line[start:]) if start > 0 else None
    return record


def read(path: Path, first_key: str) -> Iterator[dict[str, Any]]:
    """Yield the complete objects of a file, in order; none if the file does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            # A line without its end may be half of one that is being written.
            record = decode(line, first_key) if line.endswith(b"\n") else None
            if record is not None:
                yield record


def read_tail(path: Path, first_key: str, *, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the complete objects in the last `max_bytes` bytes of a file, in order."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - max_bytes))
        lines = file.read().split(b"\n")
    # The first may be cut, the last is empty or half of one that is being written.
    for line in lines[1 if length > max_bytes else 0 : -1]:
        if (record := decode(line, first_key)) is not None:
            yield record


def append(path: Path, records: Iterable[Mapping[str, Any]], *, patience: float = 0.0) -> None:
    """Append objects to a file in one write; on a full disk, wait for so many seconds for room."""
    content = b"".join(map(encode, records))
    if content:
        atomic_files.append(path, content, patience=patience)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types: array scalars become numbers, NaN and infinities null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return float(value) if math.isfinite(value) else None
