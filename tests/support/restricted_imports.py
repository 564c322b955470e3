"""Imports all modules of packages where only some distributions count as installed, as in an image.

Usage: python -m support.restricted_imports PINS PACKAGE... ; PINS is a file in `requirements`, which is in PYTHONPATH.
"""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hashed import pinned, plain  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from _typeshed.importlib import MetaPathFinderProtocol


class Restricted:
    """A finder that asks another one, and finds no module of the packages that count as missing."""

    def __init__(self, finder: "MetaPathFinderProtocol", missing: set[str]) -> None:
        self.finder = finder
        self.missing = missing

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, or None."""
        return None if name.partition(".")[0] in self.missing else self.finder.find_spec(name, path, target)


def main(pins: str, *packages: str) -> None:
    installed = set(pinned(Path(pins).read_text()))
    missing = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not installed & {plain(name) for name in distributions}
    }
    missing -= {"turnmill", "turnmill_operator", "support"}
    sys.meta_path[:] = [Restricted(finder, missing) for finder in sys.meta_path]
    for package in packages:
        folder = importlib.import_module(package)
        for module in pkgutil.walk_packages(getattr(folder, "__path__", []), f"{package}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
