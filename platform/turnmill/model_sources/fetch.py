"""Fetching of models onto a team's storage: each is there whole, with the checksums of its files, or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from turnmill.core.errors import SettingsError, TurnmillError
from turnmill.jobs.settings import Settings
from turnmill.model_sources.checksums import sha256_of
from turnmill.model_sources.origins import download
from turnmill.model_sources.settings import ModelSource
from turnmill.observability.atomic_files import flush, flush_folder, write_text

RECORD = ".turnmill-model.json"
"""File in a model's folder that says where it comes from, and the size and SHA-256 of its files."""


class FileRecord(Settings):
    """What a file was when it was fetched."""

    bytes: int
    sha256: str


class Record(Settings):
    """What a model was when it was fetched."""

    source: ModelSource
    files: Mapping[str, FileRecord] = Field(min_length=1)


class ModelFetchError(TurnmillError):
    """A model could not be fetched, or is not what it should be; nothing stands under its name."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model on the storage."""

    name: str
    num_files: int
    num_bytes: int
    was_there: bool


def fetch(source: ModelSource, folder: Path, *, verify: bool = False) -> Fetched:
    """Have a model in `folder`, under its name.

    What is there from the same source stays, and with `verify` its checksums are compared. A download that was
    interrupted goes on. Raises SettingsError if another model has the name, and ModelFetchError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _fetch(source, folder, verify=verify)
    except PermissionError as error:
        raise ModelFetchError(
            f"{source.name}: user {os.geteuid()} may not use {error.filename}. Give it the right to write to {folder}."
        ) from error
    except OSError as error:
        raise ModelFetchError(f"{source.name}: {error}. Start it again: what is there stays.") from error


def _fetch(source: ModelSource, folder: Path, *, verify: bool) -> Fetched:
    target = folder / source.name
    with _alone(folder / f".{source.name}.lock"):
        if target.exists():
            return _present(source, target, verify=verify)
        partial = folder / f".{source.name}.partial"
        _discard_unless_from(source, partial)
        expected = {**download(source, partial), **source.checksums}
        record = Record(source=source, files=_checked(source, partial, expected))
        write_text(partial / RECORD, record.model_dump_json(by_alias=True, exclude_defaults=True, indent=1))
        flush_folder(partial)
        partial.rename(target)
        flush(folder)
        _note_of(partial).unlink(missing_ok=True)
        return _fetched(record, was_there=False)


def _checked(source: ModelSource, folder: Path, expected: Mapping[str, str]) -> dict[str, FileRecord]:
    """Return size and SHA-256 of each file; discards the folder if a file is not what is expected."""
    files = {
        place.relative_to(folder).as_posix(): FileRecord(bytes=place.stat().st_size, sha256=sha256_of(place))
        for place in sorted(folder.rglob("*"))
        if place.is_file()
    }
    problems = [f"{name} is missing" for name in expected if name not in files]
    problems += [
        f"{name} has SHA-256 {files[name].sha256}, not {wanted}"
        for name, wanted in expected.items()
        if name in files and files[name].sha256 != wanted
    ]
    if "config.json" not in files:
        problems.append("there is no config.json, which every model has")
    if problems:
        shutil.rmtree(folder)
        raise ModelFetchError(f"{source.name}: {'; '.join(problems[:4])}. It was not kept.")
    return files


def _present(source: ModelSource, target: Path, *, verify: bool) -> Fetched:
    record = _read_record(target)
    if record is None or record.source != source:
        origin = "it was not fetched by this command" if record is None else f"it is of {_text(record.source)}"
        raise SettingsError(
            f"{target} is there already, and {origin}. Runs may use it: give the new model another name, or delete it."
        )
    for name, file in record.files.items():
        place = target / name
        if not place.is_file() or place.stat().st_size != file.bytes:
            raise ModelFetchError(f"{place} is missing or has another size than when it was fetched. Delete {target}.")
        if verify and sha256_of(place) != file.sha256:
            raise ModelFetchError(f"{place} has another SHA-256 than when it was fetched. Delete {target}.")
    return _fetched(record, was_there=True)


def _fetched(record: Record, *, was_there: bool) -> Fetched:
    size = sum(file.bytes for file in record.files.values())
    return Fetched(record.source.name, len(record.files), size, was_there)


def _text(source: ModelSource) -> str:
    return source.model_dump_json(by_alias=True, exclude_defaults=True)


def _read_record(folder: Path) -> Record | None:
    try:
        return Record.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def _discard_unless_from(source: ModelSource, partial: Path) -> None:
    """Remove what an interrupted download of another source has left, and note whose this one is."""
    note = _note_of(partial)
    if not note.is_file() or note.read_text() != _text(source):
        shutil.rmtree(partial, ignore_errors=True)
        write_text(note, _text(source))
    partial.mkdir(exist_ok=True)


def _note_of(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.source")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock file. Raises ModelFetchError if another process has it."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ModelFetchError(f"Another process fetches it: it holds {lock}.") from error
        yield
