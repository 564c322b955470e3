"""Where a run keeps its journal, told in the run's folder to whoever wants to read it."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

from turnmill.observability import atomic_files

FILE = "journal.json"

PASSWORD = "TURNMILL_STORE_PASSWORD"
"""Environment variable with the store's password, where the URL that goes about holds none."""


@dataclass(frozen=True, slots=True)
class JournalAddress:
    """A store and the name of the run in it."""

    url: str
    run: str

    def write(self, run_dir: Path) -> None:
        """Tell it, to the run's user alone: the URL may hold a password."""
        # mkstemp gives access to its owner alone.
        descriptor, fresh = tempfile.mkstemp(prefix=f".{FILE}.", suffix=atomic_files.TEMPORARY_SUFFIX, dir=run_dir)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)
        Path(fresh).replace(run_dir / FILE)

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """What the run told; None where it keeps no journal."""
        try:
            return cls(**json.loads((run_dir / FILE).read_text()))
        except FileNotFoundError:
            return None


def with_password(url: str) -> str:
    """The URL with the password of the environment, unless it names one or there is none."""
    parts, password = urlsplit(url), os.environ.get(PASSWORD)
    if not password or parts.password:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
