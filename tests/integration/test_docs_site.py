"""The docs site builds, and every object that users import has an entry in it."""

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import turnmill.testing

ROOT = Path(__file__).parents[2]
BASE_CLASSES = (
    "turnmill.grl",
    "turnmill.environments.base",
    "turnmill.environments.grl.base_agent",
    "turnmill.tasks.base",
    "turnmill.tools.base",
    "turnmill.sandboxes.base",
)


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The full name of every object that has an entry in the site."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ")[0] for line in lines}


@pytest.mark.parametrize("name", BASE_CLASSES)
def test_every_public_name_of_a_base_module_is_documented(name: str, inventory: set[str]):
    module = importlib.import_module(name)

    assert public_names(module) - inventory == set()


def test_every_public_name_of_turnmill_testing_is_documented(inventory: set[str]):
    modules = pkgutil.iter_modules(turnmill.testing.__path__, "turnmill.testing.")
    names = {name for found in modules for name in public_names(importlib.import_module(found.name))}

    assert names - inventory == set()


def public_names(module: ModuleType) -> set[str]:
    """Classes and functions that a module defines, or that it names in `__all__`."""
    return {f"{module.__name__}.{name}" for name in _public(module)}


def _public(module: ModuleType) -> Iterator[str]:
    exported = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            # An alias of a class, kept for compatibility, has no entry.
            own = value.__module__ == module.__name__ and name == value.__name__ and not name.startswith("_")
            if name in exported if exported is not None else own:
                yield name
