"""Files in memory: they carry a task's bytes between server and task past the memory of the processes between them.

A supervisor that read a task's source or output would have it in its heap, and so would the processes of later tasks,
which are forked from it. It moves bytes between files and pipes by `splice` instead.
"""

import os

CHUNK = 1 << 16


def create(*contents: bytes) -> int:
    """Return a descriptor of a new file with these contents, one after the other."""
    descriptor = os.memfd_create("turnmill", os.MFD_CLOEXEC)
    try:
        for content in contents:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes; raises EOFError if there are fewer."""
    chunks = []
    position = 0
    while position < size:
        chunk = os.pread(descriptor, size - position, position)
        if not chunk:
            raise EOFError(f"a file in memory has {position} bytes of {size}")
        chunks.append(chunk)
        position += len(chunk)
    return b"".join(chunks)


class Input:
    """Part of a file that is to be moved to a pipe."""

    def __init__(self, descriptor: int, start: int, end: int) -> None:
        self._descriptor = descriptor
        self._position, self._end = start, end

    def __bool__(self) -> bool:
        return self._position < self._end

    def move(self, pipe: int) -> bool:
        """Move what the pipe has room for; return True if there is more. Raises BrokenPipeError."""
        try:
            moved = os.splice(self._descriptor, pipe, min(CHUNK, self._end - self._position), self._position)
        except BlockingIOError:
            return True
        if not moved:
            raise EOFError("a task's file in memory is shorter than the server said")
        self._position += moved
        return bool(self)


class Output:
    """File to which the bytes of a pipe are moved; it keeps the first `max_bytes` of them."""

    def __init__(self, pipe: int, max_bytes: int) -> None:
        self._pipe = pipe
        self._max_bytes = max_bytes
        self.descriptor: int | None = None
        """The file; None until there are bytes."""

        self.size = 0
        self.num_received = 0

    @property
    def truncated(self) -> bool:
        """True if not all bytes were kept."""
        return self.num_received > self.size

    def move(self) -> bool:
        """Move a chunk and keep what fits; return True if there may be more. The pipe does not block."""
        if self.descriptor is None:
            self.descriptor = create()
        room = self._max_bytes - self.size
        try:
            # What does not fit is written behind the rest again and again.
            moved = os.splice(self._pipe, self.descriptor, min(CHUNK, room) or CHUNK, None, self.size)
        except BlockingIOError:
            return True
        self.num_received += moved
        self.size += min(moved, room)
        return moved > 0

    def number(self) -> int | None:
        """Return the first eight bytes as a number, or None if there are fewer."""
        if self.descriptor is None or self.size < NUMBER_BYTES:
            return None
        return int.from_bytes(os.pread(self.descriptor, NUMBER_BYTES, 0), "big")

    def close(self) -> None:
        """Close the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


NUMBER_BYTES = 8
