"""Lookup of the database files of the tool `sql`, which are never written to."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnmill.core.errors import ToolFailedError

MAX_KNOWN = 10_000
"""Number of files whose digests are cached."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database file and its digest."""

    path: Path
    size: int
    digest: str
    """SHA-256 of the content."""


class MissingDatabaseError(Exception):
    """A call names no database, or one that does not exist."""


class Databases:
    """Finds databases within a folder, and caches their digests; without a folder there are none."""

    def __init__(self, folder: Path | None, *, max_bytes: int) -> None:
        self._folder = folder.resolve() if folder else None
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[Path, int, int], Database] = OrderedDict()

    async def read(self, extra: Mapping[str, object]) -> Database:
        """Return the database of a call; raises MissingDatabaseError, or ToolFailedError if it cannot be read."""
        path = self._path(extra)
        return await asyncio.to_thread(self._read, path)

    def _path(self, extra: Mapping[str, object]) -> Path:
        if self._folder is None:
            raise ToolFailedError("sql: no folder of databases is set. Name it with --set SQL_DB_FOLDER=FOLDER.")
        named, number = extra.get("db_path"), extra.get("db_id")
        if isinstance(named, str) and named:
            path = (self._folder / named).resolve()
        elif isinstance(number, str) and number:
            candidates = (
                self._folder / number,
                self._folder / f"{number}.sqlite",
                self._folder / number / f"{number}.sqlite",
            )
            path = next((path for path in candidates if path.is_file()), candidates[0]).resolve()
        else:
            raise MissingDatabaseError("The call names no database: db_path and db_id are missing.")
        if not path.is_relative_to(self._folder):
            raise ToolFailedError(f"sql: {path} is outside SQL_DB_FOLDER ({self._folder}).")
        return path

    def _read(self, path: Path) -> Database:
        try:
            status = path.stat()
            key = (path, status.st_mtime_ns, status.st_size)
            if key not in self._known:
                self._known[key] = Database(path, status.st_size, self._digest(path, status.st_size))
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._folder is not None and self._folder.is_dir():
                raise MissingDatabaseError(f"The database file {path.name} does not exist.") from error
            raise ToolFailedError(f"sql: SQL_DB_FOLDER ({self._folder}) is no folder.") from error
        except OSError as error:
            raise ToolFailedError(f"sql: the database file {path} cannot be read: {error.strerror}.") from error
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return self._known[key]

    def _digest(self, path: Path, size: int) -> str:
        if size > self._max_bytes:
            raise ToolFailedError(f"sql: {path} has {size:,} bytes, more than SQL_MAX_DB_BYTES ({self._max_bytes:,}).")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
