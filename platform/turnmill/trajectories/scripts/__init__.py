"""Lua scripts, each run atomically by Redis: claims, commits, the journal of trajectories."""

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source and its SHA-1 digest, by which Redis caches it."""

    source: str
    digest: str


def load(name: str, *, prelude: str | None = None, allow_oom: bool = False) -> Script:
    """Load a script of this package, after its prelude; `allow_oom` is for scripts that free memory."""
    folder = resources.files(__name__)
    parts = ["#!lua flags=allow-oom"] if allow_oom else []
    parts += [(folder / f"{part}.lua").read_text() for part in (prelude, name) if part]
    return of("\n".join(parts))


def of(source: str) -> Script:
    """Return the script with this source."""
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
