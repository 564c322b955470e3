"""Models by their names on the Hugging Face hub, such as `Qwen/Qwen2.5-3B-Instruct`: where this machine has them."""

import json
import os
import re
from pathlib import Path

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_INDEX = "model.safetensors.index.json"


def is_hub_name(path: str) -> bool:
    """Return True for `owner/name` that leads into no folder of this machine."""
    return _HUB_NAME.fullmatch(path) is not None and not Path(path.partition("/")[0]).is_dir()


def local_folder(path: str) -> Path | None:
    """Return the folder of a model: the path itself, or for a hub name its folder in the cache, if it is complete."""
    if not is_hub_name(path):
        return Path(path)
    stored = _cache() / f"models--{path.replace('/', '--')}"
    try:
        folder = stored / "snapshots" / (stored / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder if _is_complete(folder) else None


def may_download() -> bool:
    """Return False if the environment forbids downloads from the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}


def fetch_command(name: str) -> str:
    """Return the command that fetches a model into the cache."""
    return f"hf download {name}"


def _cache() -> Path:
    """Return the cache's folder, as huggingface_hub chooses it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()


def _is_complete(folder: Path) -> bool:
    """Return True if the cache has configuration and weights; an interrupted download lacks some of the files."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        weights = {folder / name for name in index["weight_map"].values()}
    except FileNotFoundError:
        weights = {*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return (folder / "config.json").is_file() and bool(weights) and all(map(Path.is_file, weights))
