"""Downloads from the Hugging Face hub, from HTTP servers, from object stores and from folders of this machine."""

import shutil
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import httpx

from turnmill.model_sources.checksums import git_blob_of, sha256_of
from turnmill.model_sources.settings import ModelSource

CONNECT_SECONDS, SILENCE_SECONDS = 30.0, 120.0
"""Limits of a connection and of the time in which nothing arrives; a whole model may take hours."""

ARCHIVE = ".archive"


def download(source: ModelSource, folder: Path) -> Mapping[str, str]:
    """Download a model's files into a folder, which may have some of them; return the SHA-256 that its origin states.

    Raises OSError, with what a reader can do about it.
    """
    if source.hub is not None:
        return _from_hub(source, folder)
    if source.path is not None:
        _copy(Path(source.path), folder)
    elif source.sha256 is not None:
        _from_archive(source, folder)
    else:
        _from_object_store(str(source.url), folder)
    return {}


def _from_hub(source: ModelSource, folder: Path) -> Mapping[str, str]:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        info = huggingface_hub.HfApi().model_info(str(source.hub), revision=source.revision, files_metadata=True)
        huggingface_hub.snapshot_download(
            str(source.hub), revision=info.sha, local_dir=folder, allow_patterns=list(source.files) or None
        )
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError) as error:
        raise OSError(f"the hub has not given {source.hub} at {source.revision}: {error}") from error
    # Its notes on the download: of no use once all files are there.
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    stated: dict[str, str] = {}
    for file in info.siblings or ():
        if source.files and not any(fnmatch(file.rfilename, pattern) for pattern in source.files):
            continue
        place = folder / file.rfilename
        if file.lfs is not None:
            stated[file.rfilename] = file.lfs.sha256
        elif not place.is_file() or (file.blob_id is not None and git_blob_of(place) != file.blob_id):
            place.unlink(missing_ok=True)
            raise OSError(f"{file.rfilename} is not what the hub has")
    return stated


def _from_archive(source: ModelSource, folder: Path) -> None:
    archive = folder / ARCHIVE
    if not archive.exists():
        # What was unpacked before an interruption.
        shutil.rmtree(folder)
        folder.mkdir()
    _from_http(str(source.url), archive)
    if (found := sha256_of(archive)) != source.sha256:
        archive.unlink()
        raise OSError(f"the archive has SHA-256 {found}, not {source.sha256}; it was not kept")
    unpacked = folder / f"{ARCHIVE}.unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        with tarfile.open(archive) as content:
            _unpack(content, unpacked)
    except tarfile.TarError as error:
        raise OSError(f"the archive cannot be unpacked: {error}") from error
    archive.unlink()
    # The model is the archive's content, or that of its only folder.
    (*entries,) = unpacked.iterdir()
    root = entries[0] if len(entries) == 1 and entries[0].is_dir() else unpacked
    for entry in root.iterdir():
        entry.rename(folder / entry.name)
    shutil.rmtree(unpacked)


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders: nothing outside of the folder, no links, no devices.

    The filters of tarfile would do that, which Python has from 3.11.4 on.
    """
    folder.mkdir()
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise OSError(f"the archive cannot be unpacked: {member.name!r} lies outside of it")
        place = folder / name
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif member.isfile():
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            with content, place.open("wb") as file:
                shutil.copyfileobj(content, file)
        else:
            raise OSError(f"the archive cannot be unpacked: {member.name!r} is neither a file nor a folder")


def _from_http(url: str, place: Path) -> None:
    """Download a file; one of which a part is there goes on from its end, if the server can."""
    start = place.stat().st_size if place.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    limits = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.stream("GET", url, headers=headers, timeout=limits, follow_redirects=True) as response:
            if start and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                # All of it is there.
                return
            response.raise_for_status()
            goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
            with place.open("ab" if goes_on else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
    except httpx.HTTPError as error:
        raise OSError(f"{url} was not read to its end: {str(error) or type(error).__name__}") from error


def _from_object_store(url: str, folder: Path) -> None:
    import pyarrow
    from pyarrow import fs

    try:
        store, path = fs.FileSystem.from_uri(url)
        fs.copy_files(path, str(folder), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())
    except pyarrow.ArrowException as error:
        raise OSError(f"{url} was not copied: {error}") from error


def _copy(origin: Path, folder: Path) -> None:
    if not origin.is_dir():
        raise FileNotFoundError(f"{origin} is no folder")
    # Links within an image lead to files of it: the model has the files.
    shutil.copytree(origin, folder, dirs_exist_ok=True)
