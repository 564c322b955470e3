"""Messages between the server, a fork server, its supervisors and tasks. Reading them executes nothing.

The server sends a supervisor a task's outline, and with it a file that the supervisor passes on to the task's process
unread: the request, which is JSON and then bytes, and the standard input.
"""

import json
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, cast

from turnmill.sandboxes import memory_files
from turnmill.sandboxes.base import Command, Function, Limit, Limits, Program, Python, SandboxResult, SandboxTask

FORK_PER_TASK, PERSISTENT_WORKER = b"c", b"a"
"""Sent to the fork server with a connection: how the supervisor of that connection runs its tasks."""

MAX_COPIES = 16
"""Maximum number of files on the server that a task may get."""

MAX_FILES = 4
"""Maximum number of files of a report."""

PACKET_BYTES = 1 << 16
"""Maximum size of outlines and reports."""

MAX_FAILURE = 4096
"""Maximum number of characters of a report's failure."""

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


@dataclass(frozen=True, slots=True)
class TaskOutline:
    """What a supervisor learns of a task: numbers, and names of copies. All else is in a file that it passes on."""

    request_bytes: int
    """Bytes at the start of the file, for the task's process; its standard input follows."""

    stdin_bytes: int
    limits: Limits
    returns_value: bool
    keep_files: bool
    copies: tuple[str, ...] = ()
    """Names of copies, of each of which a descriptor follows the one of the file."""

    def to_json(self) -> bytes:
        """Encode the outline."""
        return json.dumps(_as_dict(self) | {"limits": _as_dict(self.limits)}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "TaskOutline":
        """Decode what `to_json` encoded."""
        fields = json.loads(text)
        return cls(**fields | {"limits": Limits(**fields["limits"]), "copies": tuple(fields["copies"])})


@dataclass(frozen=True, slots=True)
class Report:
    """What a supervisor says about a task; output, value and files are in files of which descriptors follow."""

    exit_code: int | None = None
    truncated: bool = False
    limit: Limit | None = None
    seconds: float = 0.0
    stdout: int = 0
    """Size in bytes; if it is 0, there is no descriptor. So have the three that follow, in this order."""

    stderr: int = 0
    value: int = 0
    files: int = 0
    last: bool = False
    """True if the supervisor takes no other task."""

    failure: str | None = None
    """Why the task could not be run."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sizes of the files, in the order of their descriptors."""
        return self.stdout, self.stderr, self.value, self.files

    def to_json(self) -> bytes:
        """Encode the report."""
        return json.dumps(_as_dict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Report":
        """Decode what `to_json` encoded."""
        return cls(**json.loads(text))


def _as_dict(value: TaskOutline | Report | Limits) -> dict[str, object]:
    """Return the fields; `asdict` copies each value deeply, on which a server spent a tenth of a short call."""
    return {name: getattr(value, name) for name in value.__slots__}


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


def wait_for_outline(connection: socket.socket, parent_pipe: int) -> tuple[TaskOutline, list[int]] | None:
    """Wait for the next task, and return its outline and descriptors.

    Return None when the server has closed the connection, or the fork server has ended, which makes `parent_pipe`
    readable.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(parent_pipe, select.POLLIN)
    if parent_pipe in dict(poll.poll()):
        return None
    text, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES, MAX_COPIES + 1)
    return (TaskOutline.from_json(text), descriptors) if text else None


def pack_task(task: SandboxTask) -> bytes:
    """Encode the request for a task's process, which has all of the task but its standard input."""
    header: Header = {
        "limits": _as_dict(task.limits),
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
    return pack(header, [argument, *task.files.values()])


def unpack_task(header: Header, blobs: list[bytes]) -> SandboxTask:
    """Decode a task's request; the standard input is in a pipe."""
    fields = cast(_TaskHeader, header)
    program: Program
    if fields["kind"] == "python":
        program = Python(fields["source"], fields["filename"])
    elif fields["kind"] == "command":
        program = Command(tuple(fields["arguments"]))
    else:
        program = Function(fields["target"], blobs[0])
    return SandboxTask(
        program,
        files=dict(zip(fields["files"], blobs[1:], strict=True)),
        # The task does not learn where they come from: the supervisor copies them.
        copies=dict.fromkeys(fields["copies"], ""),
        environment=fields["environment"],
        folder=fields["folder"],
        limits=Limits(**fields["limits"]),  # type: ignore[arg-type]
        merge_output=fields["merge_output"],
        keep_files=fields["keep_files"],
    )


def send_report(connection: socket.socket, report: Report, files: Sequence[int]) -> None:
    """Send a report and the descriptors of its files to the server."""
    socket.send_fds(connection, [report.to_json()], files)


def failure(error: Exception) -> Report:
    """Return the report that a task could not be run because of an exception."""
    return Report(failure=f"{type(error).__name__}: {error}"[:MAX_FAILURE])


def outline(task: SandboxTask, request: bytes) -> TaskOutline:
    """Return what the supervisor learns of a task with this request."""
    return TaskOutline(
        request_bytes=len(request),
        stdin_bytes=len(task.stdin),
        limits=task.limits,
        returns_value=isinstance(task.program, Function),
        keep_files=task.keep_files,
        copies=tuple(task.copies),
    )


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Encode files by their paths."""
    return pack({"files": list(files)}, list(files.values()))


def to_result(report: Report, contents: Sequence[bytes]) -> SandboxResult:
    """Return the result of a task from its report, and the contents of the report's files."""
    stdout, stderr, value, packed = contents
    files = None
    if packed:
        header, blobs = unpack(packed[:HEAD_BYTES], packed[HEAD_BYTES:])
        files = dict(zip(cast(list[str], header["files"]), blobs, strict=True))
    return SandboxResult(
        exit_code=report.exit_code,
        stdout=stdout,
        stderr=stderr,
        truncated=report.truncated,
        limit=report.limit,
        value=value[memory_files.NUMBER_BYTES :] if value else None,
        files=files,
        seconds=report.seconds,
    )
