"""Packages that do not go with turnmill's own and live in an installation by themselves."""

import importlib
from typing import Any

from turnmill.core.errors import SettingsError


def import_extra(module: str, *, extra: str) -> Any:
    """A module of an extra; raises SettingsError, saying how to come by it, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"environment.name: this environment needs the package {module.partition('.')[0]!r} ({error}), which does "
            "not go with turnmill's own. Install it by itself (python3.11 -m venv FOLDER && FOLDER/bin/pip install "
            f"'CHECKOUT[{extra}]', turnmill's folder) and give FOLDER/bin/python as environment.python."
        ) from error
