"""Address of a run's journal, written to the run's folder for readers."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

from turnmill.observability import atomic_files

FILE = "journal.json"

USER, PASSWORD = "TURNMILL_STORE_USER", "TURNMILL_STORE_PASSWORD"
"""Environment variables with the store's user and password, for URLs without a password."""


@dataclass(frozen=True, slots=True)
class JournalAddress:
    """URL of a store, and the name of the run in it."""

    url: str
    run: str

    def write(self, run_dir: Path) -> None:
        """Write the address, readable by the run's user alone: the URL may contain a password."""
        # mkstemp makes files that only their owner can access.
        descriptor, fresh = tempfile.mkstemp(prefix=f".{FILE}.", suffix=atomic_files.TEMPORARY_SUFFIX, dir=run_dir)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)
        Path(fresh).replace(run_dir / FILE)

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """Read the address of a run's journal; None if it has none."""
        try:
            return cls(**json.loads((run_dir / FILE).read_text()))
        except FileNotFoundError:
            return None


def with_password(url: str) -> str:
    """Return the URL with user and password from the environment, unless it has a password or none is set.

    A store behind a Unix socket, such as one that a run starts for itself, is not the one that the environment means.
    """
    parts, password = urlsplit(url), os.environ.get(PASSWORD)
    if not password or parts.password or parts.scheme == "unix":
        return url
    user, _, host = parts.netloc.rpartition("@")
    user = user or quote(os.environ.get(USER, ""), safe="")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
