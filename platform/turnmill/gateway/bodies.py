"""Bodies of requests, of which only what is new is read.

An agent sends its whole conversation with each request, most often in the same bytes as before and with messages at the
end. Reading it all would make a turn cost more with each turn before it.
"""

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from turnmill.gateway.messages import JsonObject, Message, digest

MAX_CONVERSATIONS = 4
"""Conversations of one agent that are remembered, as sub-agents take turns."""

MAX_REMEMBERED_BYTES = 32 * 1024**2
"""Bodies that are remembered, of all agents; their messages take some three times as much."""

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


class Item:
    """A message, or another item of a conversation."""

    __slots__ = ("chain", "end", "messages", "unfinished", "value")

    def __init__(self, value: JsonObject, end: int, chain: str) -> None:
        self.value = value
        self.end = end
        """Place in the body after it, in bytes."""

        self.chain = chain
        """Digest of all items up to this one."""

        self.messages: tuple[Message, ...] | None = None
        """What it is for the chat template, once somebody has asked for it."""

        self.unfinished: JsonObject | None = None
        """A message to which items after this one may belong, too."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of a request."""

    data: bytes
    digest: str
    """What repeats of the request share, also if the fields of an object are in another order, as Codex has it."""

    fields: Mapping[str, object] | None = None
    """Its fields but the conversation; None if it is no JSON object."""

    items: Sequence[Item] | None = None
    """The conversation; None if it is no list of objects."""

    opening: Mapping[str, object] | None = None
    """The fields before the conversation."""

    tail: bytes = b""
    """The bytes after the conversation."""

    fields_digest: str = ""

    def messages(self, convert: Callable[[JsonObject], Iterable[Message]]) -> tuple[Message, ...]:
        """Return the messages of the conversation; each item is converted once, by the same function."""
        found: list[Message] = []
        for item in self.items or ():
            if item.messages is None:
                item.messages = tuple(convert(item.value))
            found += item.messages
        return tuple(found)

    def num_shared(self, data: bytes) -> int:
        """Return the number of items that another body begins with, in the same bytes."""
        if not self.items:
            return 0
        if data.startswith(memoryview(self.data)[: self.items[-1].end]):
            return len(self.items)
        return bisect_right(self.items, False, key=lambda item: not data.startswith(memoryview(self.data)[: item.end]))


class BodyReader:
    """Reads the bodies of one agent."""

    def __init__(self, path: str, conversation: str) -> None:
        """Take the path of the API, which is a part of the digest, and the field that holds the conversation."""
        self._path = path
        self._conversation = conversation
        self._known: list[RequestBody] = []
        """The last bodies, the latest first."""

    @property
    def num_bytes(self) -> int:
        """Return the size of the remembered bodies."""
        return sum(len(body.data) for body in self._known)

    def read(self, data: bytes) -> RequestBody:
        """Return a body; of one that is no JSON object only the bytes."""
        known, shared = None, 0
        for body in self._known:
            if (number := body.num_shared(data)) > shared:
                known, shared = body, number
        try:
            read = _Reading(data, self._path, self._conversation).read(known, shared)
        except (ValueError, RecursionError):
            return RequestBody(data, digest(self._path, data))
        # Where a number ends is not known before what follows it.
        if read.items and all(type(item.value) is dict for item in read.items):
            if known is not None and shared == len(known.items or ()):
                self._known.remove(known)
            self._known = [read, *self._known[: MAX_CONVERSATIONS - 1]]
        return read


class BodyReaders:
    """Readers by the keys of agents; those that have not been used for long are forgotten."""

    def __init__(self) -> None:
        self._readers: OrderedDict[tuple[str, str], BodyReader] = OrderedDict()
        self._num_bytes = 0

    def read(self, key: str, path: str, conversation: str, data: bytes) -> RequestBody:
        """Return a body that came with a key."""
        reader = self._readers.pop((key, path), None) or BodyReader(path, conversation)
        self._num_bytes -= reader.num_bytes
        body = reader.read(data)
        self._readers[key, path] = reader
        self._num_bytes += reader.num_bytes
        while self._num_bytes > MAX_REMEMBERED_BYTES:
            _, oldest = self._readers.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
        return body


class _Reading:
    """One pass over a body. Raises ValueError if it is no JSON object."""

    def __init__(self, data: bytes, path: str, conversation: str) -> None:
        self._data = data
        self._path = path
        self._conversation = conversation
        self._text = ""
        self._place = 0
        self._counted = 0
        """Place up to which the text's bytes are counted."""

        self._num_bytes = 0
        self._fields: dict[str, object] = {}
        self._opening: Mapping[str, object] | None = None
        self._items: list[Item] = []
        self._end_of_items = 0

    def read(self, known: RequestBody | None, shared: int) -> RequestBody:
        """Read what follows the items that it shares with a known body."""
        if known is None:
            self._text = self._data.decode()
            self._take("{")
            if self._next() == "}":
                self._place += 1
                return self._finish()
            self._read_field()
        else:
            assert known.items is not None
            assert known.opening is not None
            self._items = list(known.items[:shared])
            self._num_bytes = self._items[-1].end
            self._text = self._data[self._num_bytes :].decode()
            self._opening = known.opening
            self._fields = dict(known.opening)
            self._read_items()
            if self._data[self._end_of_items :] == known.tail:
                # What agents send besides is most often the same.
                whole = digest(known.fields_digest, self._items[-1].chain)
                return replace(known, data=self._data, digest=whole, items=self._items)
        while self._take(",}") == ",":
            self._read_field()
        return self._finish()

    def _finish(self) -> RequestBody:
        if self._next():
            raise ValueError("something follows the object")
        values = [canonical(self._fields[name]) for name in sorted(self._fields)]
        of_fields = digest(self._path, *sorted(self._fields), *values)
        if self._opening is None:
            return RequestBody(self._data, of_fields, self._fields)
        chain = self._items[-1].chain if self._items else ""
        return RequestBody(
            self._data,
            digest(of_fields, chain),
            self._fields,
            self._items,
            self._opening,
            self._data[self._end_of_items :],
            of_fields,
        )

    def _read_field(self) -> None:
        name = self._value()
        if not isinstance(name, str):
            raise ValueError("the name of a field is no text")
        self._take(":")
        if name != self._conversation:
            self._fields[name] = self._value()
            return
        # Of several fields of one name, the last counts.
        self._items, self._opening = [], None
        self._fields.pop(name, None)
        if self._next() != "[":
            self._fields[name] = self._value()
            return
        self._place += 1
        self._opening = dict(self._fields)
        if self._next() == "]":
            self._place += 1
            self._end_of_items = self._count_bytes()
        else:
            self._read_item()
            self._read_items()

    def _read_items(self) -> None:
        """Read the rest of the conversation, after one of its items."""
        while self._take(",]") == ",":
            self._read_item()
        self._end_of_items = self._count_bytes()

    def _read_item(self) -> None:
        value = self._value()
        before = self._items[-1].chain if self._items else ""
        chain = digest(before, canonical(value))
        self._items.append(Item(value, self._count_bytes(), chain))  # type: ignore[arg-type]

    def _value(self) -> object:
        self._next()
        value, self._place = _decode(self._text, self._place)
        return value

    def _next(self) -> str:
        """Skip white space; return the next character, empty at the end."""
        space = _SPACE.match(self._text, self._place)
        assert space is not None
        self._place = space.end()
        return self._text[self._place : self._place + 1]

    def _take(self, choice: str) -> str:
        found = self._next()
        if not found or found not in choice:
            raise ValueError(f"{found!r} stands where one of {choice} should")
        self._place += 1
        return found

    def _count_bytes(self) -> int:
        """Return the place in the body, in bytes."""
        self._num_bytes += len(self._text[self._counted : self._place].encode())
        self._counted = self._place
        return self._num_bytes


def canonical(value: object) -> bytes:
    """Return JSON that does not depend on the order of fields. Raises ValueError for half of a surrogate pair."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
