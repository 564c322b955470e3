"""Messages between the server, a fork server and its supervisors: JSON, then bytes. Reading them executes nothing."""

import json
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, cast

from turnmill.sandboxes.base import Command, Function, Limit, Limits, Program, Python, SandboxResult, SandboxTask

FORK_PER_TASK, PERSISTENT_WORKER = b"c", b"a"
"""Sent to the fork server with a connection: how the supervisor of that connection runs its tasks."""

MAX_COPIES = 16
"""Maximum number of files on the server that a task may get."""

_LENGTHS = struct.Struct("!IQ")
HEAD_BYTES = _LENGTHS.size

Header = dict[str, object]


@dataclass(frozen=True, slots=True)
class ForkServerOptions:
    """Command line of a fork server, as JSON."""

    folder: str
    """Folder of its workspaces."""

    control: int
    """Descriptor over which it receives connections."""

    import_path: Sequence[str]
    preload: Sequence[str]
    """Modules whose functions tasks may call."""

    packages: Sequence[str]
    """Packages that tasks may import."""

    warm_packages: Sequence[str]
    """Packages that it imports before it forks."""

    network: bool
    namespaces: bool
    confined: bool

    def to_json(self) -> str:
        """Encode the options."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ForkServerOptions":
        """Decode what `to_json` encoded."""
        return cls(**json.loads(text))


class _TaskHeader(TypedDict):
    kind: str
    source: str
    filename: str
    arguments: list[str]
    target: str
    limits: dict[str, float]
    folder: str
    environment: dict[str, str]
    merge_output: bool
    keep_files: bool
    files: list[str]
    copies: list[str]


class _ResultHeader(TypedDict):
    exit_code: int | None
    truncated: bool
    limit: Limit | None
    seconds: float
    has_value: bool
    files: list[str] | None


def pack(header: Mapping[str, object], blobs: Sequence[bytes]) -> bytes:
    """Encode one message."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs))


def body_bytes(head: bytes) -> int:
    """Return the number of bytes that follow the first HEAD_BYTES bytes of a message."""
    header, blobs = _LENGTHS.unpack(head)
    return int(header + blobs)


def unpack(head: bytes, body: bytes | bytearray) -> tuple[Header, list[bytes]]:
    """Decode a message into its header and its byte strings."""
    offset, _ = _LENGTHS.unpack(head)
    header = json.loads(bytes(body[:offset]))
    blobs = []
    for length in header.pop("blobs"):
        blobs.append(bytes(body[offset : offset + length]))
        offset += length
    return header, blobs


def receive(read: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Read head and body of a message from a blocking source; None if it ends before the end of the message."""
    head = read_exactly(read, HEAD_BYTES)
    body = None if head is None else read_exactly(read, body_bytes(head))
    return None if head is None or body is None else (head, body)


def read_exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    """Read `size` bytes; None if the source ends before."""
    data = bytearray()
    while len(data) < size:
        chunk = read(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def wait_for_message(connection: socket.socket, parent_pipe: int, copies: list[int]) -> tuple[bytes, bytes] | None:
    """Wait for the next message and append its descriptors to `copies`.

    Return None when the server has closed the connection, or the fork server has ended, which makes `parent_pipe`
    readable.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(parent_pipe, select.POLLIN)
    return None if parent_pipe in dict(poll.poll()) else receive(lambda size: _receive(connection, size, copies))


def _receive(connection: socket.socket, size: int, copies: list[int]) -> bytes:
    data, descriptors, _, _ = socket.recv_fds(connection, size, MAX_COPIES)
    copies += descriptors
    return data


def pack_task(task: SandboxTask) -> bytes:
    """Encode a task for the supervisor."""
    header: Header = {
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


def unpack_task(header: Header, blobs: list[bytes]) -> SandboxTask:
    """Decode a task."""
    fields = cast(_TaskHeader, header)
    program: Program
    if fields["kind"] == "python":
        program = Python(fields["source"], fields["filename"])
    elif fields["kind"] == "command":
        program = Command(tuple(fields["arguments"]))
    else:
        program = Function(fields["target"], blobs[1])
    return SandboxTask(
        program,
        stdin=blobs[0],
        files=dict(zip(fields["files"], blobs[2:], strict=True)),
        # The task does not learn where they come from: an open descriptor of each comes with the message.
        copies=dict.fromkeys(fields["copies"], ""),
        environment=fields["environment"],
        folder=fields["folder"],
        limits=Limits(**fields["limits"]),  # type: ignore[arg-type]
        merge_output=fields["merge_output"],
        keep_files=fields["keep_files"],
    )


def pack_result(result: SandboxResult) -> bytes:
    """Encode the supervisor's report on a task."""
    files = result.files or {}
    header = {
        "exit_code": result.exit_code,
        "truncated": result.truncated,
        "limit": result.limit,
        "seconds": result.seconds,
        "has_value": result.value is not None,
        "files": None if result.files is None else list(files),
    }
    return pack(header, [result.stdout, result.stderr, result.value or b"", *files.values()])


def pack_failure(message: str) -> bytes:
    """Encode the report that a task could not be run, with the reason."""
    return pack({"failure": message}, [])


def unpack_result(header: Header, blobs: list[bytes]) -> SandboxResult:
    """Decode the supervisor's report on a task."""
    fields = cast(_ResultHeader, header)
    return SandboxResult(
        exit_code=fields["exit_code"],
        stdout=blobs[0],
        stderr=blobs[1],
        truncated=fields["truncated"],
        limit=fields["limit"],
        value=blobs[2] if fields["has_value"] else None,
        files=None if fields["files"] is None else dict(zip(fields["files"], blobs[3:], strict=True)),
        seconds=fields["seconds"],
    )
