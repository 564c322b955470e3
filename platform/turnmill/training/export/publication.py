"""Uploads of exported models to the Hugging Face hub."""

import os
import re
import shlex
from pathlib import Path

from turnmill.core.errors import SettingsError, first_line
from turnmill.jobs.hub import may_download

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def require_hub(name: str) -> None:
    """Raise SettingsError if nothing can be uploaded under this name: before hours of work, not after."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"--push {name}: a model of the hub is named owner/name. Give both, such as me/{Path(name).name}."
        )
    if not may_download():
        raise SettingsError(f"--push {name}: HF_HUB_OFFLINE forbids uploads. Unset it, or omit --push.")
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
    except Exception as error:
        # Of the network, of the hub, of a token that is missing or wrong.
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise SettingsError(
            f"--push {name}: {hub} does not accept this user ({first_line(error)}). Log in with `hf auth login` where "
            "the hub can be reached, or omit --push."
        ) from error


def publish(folder: Path, name: str) -> str:
    """Upload an exported folder, to a private repository if there is none yet, and return its address."""
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)
    except Exception as error:
        raise SettingsError(
            f"--push {name}: {folder} is complete, but its upload has failed ({first_line(error)}). Try it again with "
            f"`{shlex.join(['hf', 'upload', name, str(folder)])}`."
        ) from error
    return f"{hub.endpoint}/{name}"
