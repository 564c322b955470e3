"""Structured logs: events with fields, as `key=value` on the console and as JSON lines in files."""

import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from turnmill.observability import json_lines
from turnmill.observability.run_folder import RunFolder

ROOT = "turnmill"

# Attributes of every record; any other attribute is a field given by `extra`.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class ConsoleFormatter(logging.Formatter):
    """Formats an event as one line: time, level, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event, followed by the traceback if there is one."""
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = (f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        line = " ".join([clock, record.levelname.lower(), record.getMessage(), *fields])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formats an event as one strict JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of an event; fields without a JSON type become text."""
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json_lines.encode(event | {name: _jsonable(value) for name, value in _fields(record).items()}).decode()


class EventFile(logging.FileHandler):
    """A file of events. Where it cannot be written to, as on a full disk, that is said once, and events are lost."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="replace", delay=True)
        self.terminator = ""
        self.setFormatter(JsonFormatter())
        self._is_broken = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (a name of logging)
        """Say that the file cannot be written to."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_broken:
            self._is_broken = True
            print(f"{self.baseFilename} cannot be written to: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        """Close the file, which writes what could not be written before."""
        with suppress(OSError):
            super().close()


def configure(folder: RunFolder | None = None, *, process: str = "main", level: int = logging.INFO) -> None:
    """Log events from `level` on to the console, and all events to `logs/<process>.jsonl`. May be called again."""
    logger = logging.getLogger(ROOT)
    close()
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(ConsoleFormatter())
    console.setLevel(level)
    logger.addHandler(console)
    if folder is not None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        logger.addHandler(EventFile(folder.logs / f"{process}.jsonl"))
    logger.setLevel(min(level, logging.INFO))
    # Ray and verl configure the root logger, which would print every event a second time.
    logger.propagate = False


def close() -> None:
    """Remove the handlers that `configure` added."""
    logger = logging.getLogger(ROOT)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def _fields(record: logging.LogRecord) -> dict[str, object]:
    # Ray adds a private attribute to every record.
    return {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES and name[0] != "_"}


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return repr(text) if not text or any(character.isspace() or character in "\"'=" for character in text) else text


def _jsonable(value: object) -> object:
    return value if value is None or isinstance(value, str | bool | int | float | list | dict) else str(value)
