"""Optional packages whose dependencies conflict with turnmill's: they are installed in an interpreter of their own."""

import importlib
from typing import Any

from turnmill.core.errors import SettingsError


def import_extra(module: str, *, extra: str) -> Any:
    """Import a module of an optional extra. Raises SettingsError, with the commands to install it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"environment.name: this environment needs the package {module.partition('.')[0]!r} ({error}), whose "
            "dependencies conflict with turnmill's. Install it in a virtual environment of its own "
            f"(python3.11 -m venv FOLDER && FOLDER/bin/pip install 'CHECKOUT[{extra}]', where CHECKOUT is turnmill's "
            "folder) and set environment.python to FOLDER/bin/python."
        ) from error
