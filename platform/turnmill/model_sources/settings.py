"""The file that lists a team's models, and where each comes from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from turnmill.core.errors import SettingsError
from turnmill.jobs.problems import JobError
from turnmill.jobs.settings import FilePath, Settings
from turnmill.jobs.validation_text import problems_text
from turnmill.jobs.yaml_file import parse_yaml

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
FOLDERS = ("s3", "gs", "file")


class ModelSource(Settings):
    """A model: its name on the team's storage, and exactly one of `hub`, `url` and `path`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    """Folder of the model on the storage: jobs name it as `/models/NAME`."""

    hub: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")] | None = None
    """Repository on the Hugging Face hub, or on the one that HF_ENDPOINT names."""

    revision: Annotated[str, Field(min_length=1, max_length=128)] = "main"
    """With `hub`: branch, tag or commit. A commit is the same model for ever."""

    files: Annotated[tuple[str, ...], Field(strict=False, max_length=64)] = ()
    """With `hub`: patterns of the files to fetch, such as `*.safetensors`; empty fetches all."""

    url: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """`https://` of a tar archive; `s3://` or `gs://` of a folder, whose credentials come from the environment."""

    sha256: Sha256 | None = None
    """SHA-256 of the archive, which one over HTTP must have."""

    path: FilePath | None = None
    """Folder of this machine, such as one of an image that is mounted as a volume."""

    checksums: Annotated[Mapping[str, Sha256], Field(max_length=4096)] = {}
    """SHA-256 of files, by their paths in the model's folder; others are not compared."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        given = [name for name in ("hub", "url", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"{self.name} needs exactly one of hub, url and path, not {' and '.join(given) or 'none'}")
        if self.hub is None and (self.files or self.revision != "main"):
            raise ValueError(f"{self.name}: files and revision are of a hub; leave them out")
        scheme = "" if self.url is None else urlsplit(self.url).scheme
        if self.url is not None and scheme not in ("http", "https", *FOLDERS):
            raise ValueError(f"{self.name}: url is of https, http, s3 or gs, not {scheme or self.url!r}")
        is_archive = scheme in ("http", "https")
        if is_archive and not urlsplit(self.url or "").path.endswith(ARCHIVES):
            raise ValueError(f"{self.name}: url is not of an archive; its path must end with {', '.join(ARCHIVES)}")
        if is_archive and self.sha256 is None:
            raise ValueError(f"{self.name}: set sha256 of the archive, as sha256sum prints it")
        if not is_archive and self.sha256 is not None:
            raise ValueError(f"{self.name}: sha256 is of an archive over HTTP; set checksums of files")
        return self


_SOURCES = TypeAdapter(Annotated[list[ModelSource], Field(max_length=256)])


def read_sources(file: Path) -> list[ModelSource]:
    """Return the models that a YAML file lists. Raises SettingsError with place, value and rule."""
    try:
        found = parse_yaml(file.read_text()).value
        sources = _SOURCES.validate_python(found if found is not None else [], by_alias=True, by_name=False)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    except JobError as error:
        raise SettingsError(f"{file}: {error}") from error
    except ValidationError as error:
        raise SettingsError(f"{file}: {problems_text(error)}") from error
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"{file}: {', '.join(twice)}: listed twice. Give each model a name of its own.")
    return sources
