"""Bounded decoding of a response's body."""

import zlib

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_IDENTITY = ("", "identity")


class UnreadableContentError(Exception):
    """The body has an encoding that is not undone; the message is for the agent."""


class BoundedDecoder:
    """Decodes a body piece by piece, up to a number of bytes.

    One layer of gzip or deflate is undone; several layers are refused, as each multiplies the size of the one before.
    Raises UnreadableContentError.
    """

    def __init__(self, encoding: str, *, max_bytes: int) -> None:
        """Take the Content-Encoding header; more than `max_bytes` are neither read nor produced."""
        encoding = encoding.strip().lower()
        if encoding not in _IDENTITY and encoding not in _WINDOW_BITS:
            raise UnreadableContentError(f"The page is encoded as {encoding[:100]!r}, which is not read here.")
        self._inflater = None if encoding in _IDENTITY else zlib.decompressobj(_WINDOW_BITS[encoding])
        self._max_bytes = max_bytes
        self._num_read = 0
        self._content = bytearray()

    @property
    def content(self) -> bytes:
        """The decoded bytes, at most `max_bytes`."""
        return bytes(self._content[: self._max_bytes])

    @property
    def is_cut(self) -> bool:
        """True if the body is longer than `max_bytes`, as sent or as decoded."""
        return len(self._content) > self._max_bytes or self._num_read > self._max_bytes

    def feed(self, piece: bytes) -> None:
        """Decode the next piece, producing one byte beyond the limit at most."""
        self._num_read += len(piece)
        room = self._max_bytes + 1 - len(self._content)
        if self._inflater is None:
            self._content += piece[:room]
        elif room > 0:
            try:
                self._content += self._inflater.decompress(piece, room)
            except zlib.error as error:
                raise UnreadableContentError("The page's compressed data is broken.") from error
