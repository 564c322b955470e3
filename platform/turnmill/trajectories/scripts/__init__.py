"""What runs inside Redis, in one piece each: claims, commits, the journal of trajectories."""

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source and the digest by which Redis knows it."""

    source: str
    digest: str


def load(name: str, *, prelude: str | None = None, allow_oom: bool = False) -> Script:
    """Read a script of this package, behind a prelude; `allow_oom` is for those that free memory."""
    folder = resources.files(__name__)
    parts = ["#!lua flags=allow-oom"] if allow_oom else []
    parts += [(folder / f"{part}.lua").read_text() for part in (prelude, name) if part]
    source = "\n".join(parts)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
