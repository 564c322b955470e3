"""Files of one JSON object per line that readers can follow while they are written."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from turnmill.observability import atomic_files


def encode(record: Mapping[str, Any]) -> bytes:
    """One line of strict JSON; numbers that JSON has no word for become null."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", errors="replace") + b"\n"


def decode(line: bytes, first_key: str) -> dict[str, Any] | None:
    """The object of one line, or None if its writer was killed before the end of it.

    What a living writer appends after a torn line shares that line; `first_key`, the first key of every object of
    the file, shows where it begins. The same characters inside a string would bear backslashes.
    """
    record = _parse(line)
    if record is None:
        start = line.rfind(f'{{"{first_key}":'.encode())
        record = _parse(line[start:]) if start > 0 else None
    return record


def read(path: Path, first_key: str) -> Iterator[dict[str, Any]]:
    """The whole objects of a file, in order; nothing if there is no such file."""
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
    """The whole objects in the last bytes of a file, in order: the file may be long."""
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


def append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add objects to a file, together and in one call."""
    content = b"".join(map(encode, records))
    if content:
        atomic_files.append(path, content)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """The same value in JSON's own types: array scalars become numbers, NaN and infinities null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return float(value) if math.isfinite(value) else None
