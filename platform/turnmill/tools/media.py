"""Images or audio files of a trajectory: those given with it, and those that its calls created."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import MIB
from turnmill.tools import settings
from turnmill.trajectories.base import Change, State

_GIVEN = "given"
_MADE = "made/"
_SHARE = 3 / 7
"""Share of a file in all data stored for it: the recorded result also contains it, in base64."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits on media, from settings whose names begin with `prefix`."""

    prefix: str
    folder: Path | None
    max_file_bytes: int
    max_state_bytes: int

    @classmethod
    def from_settings(cls, values: settings.Values, prefix: str) -> "MediaLimits":
        """Read `PREFIX_FOLDER`, `PREFIX_MAX_FILE_BYTES` and `PREFIX_MAX_STATE_BYTES`."""
        folder = settings.text(values, f"{prefix}_FOLDER", "")
        return cls(
            prefix,
            Path(folder).resolve() if folder else None,
            settings.count(values, f"{prefix}_MAX_FILE_BYTES", 64 * MIB, least=1),
            settings.state_bytes(values, f"{prefix}_MAX_STATE_BYTES", 24 * MIB, least=1, share=_SHARE),
        )


class Media:
    """Media of a trajectory, numbered from 1; those given with the first call are stored for later calls."""

    def __init__(self, state: State, extra: Mapping[str, object], keys: Sequence[str], limits: MediaLimits) -> None:
        """Take the names in `extra` (`keys`) under which a call may give media, as paths or data URLs."""
        self._state = state
        self._limits = limits
        self._made = sorted(name for name in state if name.startswith(_MADE))
        given: object = next((extra[key] for key in keys if extra.get(key)), [])
        self._given = json.loads(state[_GIVEN]) if _GIVEN in state else _locations(given)

    def __len__(self) -> int:
        return len(self._given) + len(self._made)

    def read(self, number: int) -> bytes:
        """Return the file with a number; raises ToolFailedError if a given one cannot be read."""
        if number > len(self._given):
            return self._state[self._made[number - len(self._given) - 1]]
        return self._read(self._given[number - 1])

    def change_with(self, files: Sequence[bytes]) -> Change | None:
        """Return the change of state that adds files with the next numbers; None if the state would be too large."""
        num_bytes = sum(len(self._state[name]) for name in self._made) + sum(map(len, files))
        if num_bytes > self._limits.max_state_bytes:
            return None
        first = len(self._made) + 1
        written = {f"{_MADE}{number:05d}": file for number, file in enumerate(files, start=first)}
        if self._given and _GIVEN not in self._state:
            written[_GIVEN] = json.dumps(self._given).encode()
        return Change(written=written)

    def _read(self, location: str) -> bytes:
        if location.startswith("data:"):
            return _from_data_url(location)
        folder, max_bytes = self._limits.folder, self._limits.max_file_bytes
        setting = f"{self._limits.prefix}_FOLDER"
        if folder is None:
            raise ToolFailedError(
                f"{location[:200]} is a path, and no folder is set: name one with --set {setting}=FOLDER, "
                "or send data URLs."
            )
        path = (folder / location.removeprefix("file://")).resolve()
        if not path.is_relative_to(folder):
            raise ToolFailedError(f"{path} is not in {setting} ({folder}): move it there.")
        try:
            if path.stat().st_size > max_bytes:
                name = f"{self._limits.prefix}_MAX_FILE_BYTES"
                raise ToolFailedError(
                    f"{path} has {path.stat().st_size:,} bytes, {name} allows {max_bytes:,}: raise it."
                )
            return path.read_bytes()
        except OSError as error:
            raise ToolFailedError(f"{path} cannot be read here: {error.strerror}.") from error


def data_url(kind: str, file: bytes) -> str:
    """Encode a file as a data URL; `kind` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def _from_data_url(url: str) -> bytes:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except binascii.Error as error:
        raise ToolFailedError(f"{url[:40]}... is no data URL in base64: {error}.") from error


def _locations(given: object) -> list[str]:
    """Return the locations of one or several media; each is a text, or an object with the text under its kind."""
    several = given if isinstance(given, list) else [given]
    return [_location(entry) for entry in several]


def _location(entry: object) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in ("audio", "audio_url", "image", "image_url") if entry.get(key)), None)
    if not isinstance(entry, str):
        raise ToolFailedError(f"{str(entry)[:80]!r} is neither a path nor a data URL.")
    return entry
