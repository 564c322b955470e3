"""Messages between the server and a supervisor: JSON, then bytes. Nothing here runs what it reads."""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from turnmill.sandboxes.base import Command, Function, Limits, Outcome, Python, Task

_LENGTHS = struct.Struct("!IQ")
HEAD_BYTES = _LENGTHS.size


def pack(header: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """One message."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs))


def body_bytes(head: bytes) -> int:
    """How much follows the first HEAD_BYTES bytes of a message."""
    header, blobs = _LENGTHS.unpack(head)
    return int(header + blobs)


def unpack(head: bytes, body: bytes | bytearray) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the bytes of a message."""
    offset, _ = _LENGTHS.unpack(head)
    header = json.loads(bytes(body[:offset]))
    blobs = []
    for length in header.pop("blobs"):
        blobs.append(bytes(body[offset : offset + length]))
        offset += length
    return header, blobs


def receive(read: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Head and body of a message from a blocking source; None if it ends before the message does."""
    head = read_exactly(read, HEAD_BYTES)
    body = None if head is None else read_exactly(read, body_bytes(head))
    return None if head is None or body is None else (head, body)


def read_exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    """So many bytes; None if the source ends before."""
    data = bytearray()
    while len(data) < size:
        chunk = read(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def pack_task(task: Task) -> bytes:
    """A task as the supervisor gets it."""
    header: dict[str, Any] = {
        "limits": asdict(task.limits),
        "folder": task.folder,
        "environment": dict(task.environment),
        "merge_output": task.merge_output,
        "keep_files": task.keep_files,
        "files": list(task.files),
        "copies": list(task.copies),
    }
    argument = b""
    match task.program:
        case Python(source, filename):
            header |= {"kind": "python", "source": source, "filename": filename}
        case Command(arguments):
            header |= {"kind": "command", "arguments": list(arguments)}
        case Function(target, argument):
            header |= {"kind": "function", "target": target}
    return pack(header, [task.stdin, argument, *task.files.values()])


def unpack_task(header: dict[str, Any], blobs: list[bytes]) -> Task:
    """The task again."""
    program: Python | Command | Function
    if header["kind"] == "python":
        program = Python(header["source"], header["filename"])
    elif header["kind"] == "command":
        program = Command(tuple(header["arguments"]))
    else:
        program = Function(header["target"], blobs[1])
    return Task(
        program,
        stdin=blobs[0],
        files=dict(zip(header["files"], blobs[2:], strict=True)),
        # Where they come from is nothing to a task: an open descriptor of each comes with the message.
        copies=dict.fromkeys(header["copies"], ""),
        environment=header["environment"],
        folder=header["folder"],
        limits=Limits(**header["limits"]),
        merge_output=header["merge_output"],
        keep_files=header["keep_files"],
    )


def pack_outcome(outcome: Outcome) -> bytes:
    """What the supervisor reports."""
    files = outcome.files or {}
    header = {
        "exit_code": outcome.exit_code,
        "truncated": outcome.truncated,
        "limit": outcome.limit,
        "seconds": outcome.seconds,
        "has_value": outcome.value is not None,
        "files": None if outcome.files is None else list(files),
    }
    return pack(header, [outcome.stdout, outcome.stderr, outcome.value or b"", *files.values()])


def pack_failure(message: str) -> bytes:
    """That a task could not be run, and why."""
    return pack({"failure": message}, [])


def unpack_outcome(header: dict[str, Any], blobs: list[bytes]) -> Outcome:
    """The outcome again."""
    return Outcome(
        exit_code=header["exit_code"],
        stdout=blobs[0],
        stderr=blobs[1],
        truncated=header["truncated"],
        limit=header["limit"],
        value=blobs[2] if header["has_value"] else None,
        files=None if header["files"] is None else dict(zip(header["files"], blobs[3:], strict=True)),
        seconds=header["seconds"],
    )
