"""Makes a warm start once and keeps it: a Hugging Face folder named after everything that made it."""

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import turnmill
from turnmill.core.code_hash import hash_code
from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.recipes import recipe_of

Progress = Callable[[int, int, float], None]

PACKAGE = Path(turnmill.__file__).parent
CODE = ("environments", "tasks", "training/warm_start", "rollout/verlog/prompts.py", "rollout/verlog/memory.py")
"""Code of turnmill that makes demonstrations or imitates them."""

DISTRIBUTION = "turnmill"


def ensure_warm_start(
    settings: WarmStart,
    *,
    environment: EnvironmentSettings,
    agent: AgentSettings,
    cache_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> Path:
    """The folder of a model cloned for an agent and what it acts on; made on the first call, found later."""
    folder = (cache_dir or default_cache_dir()) / cache_key(settings, environment, agent)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make_warm_start(unfinished, settings, environment, agent, on_progress or (lambda *_: None))
        try:
            unfinished.replace(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def default_cache_dir() -> Path:
    """Return the folder of warm starts where no other is given."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnmill" / "warm-start"


def cache_key(settings: WarmStart, environment: EnvironmentSettings, agent: AgentSettings) -> str:
    """Return a name for a warm start, of 16 hexadecimal digits, that changes with everything that makes it.

    That is: settings with their seed, the code of demonstrations and cloning, the versions of all packages that
    turnmill names, and the content of files and modules (`package.module:Class`) in the settings.
    """
    agent_settings = recipe_of(agent).ingredients()
    world = [environment.name, environment.task, environment.options]
    made_of = {
        "settings": settings.model_dump(mode="json"),
        "world": world,
        "agent": agent_settings,
        "files": [_hash_file(file) for file in _files_in([world, agent_settings])],
        "code": hash_code(PACKAGE / part for part in CODE),
        "versions": _versions(),
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    """Return the installed versions of the packages that turnmill names, Python's included."""
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in metadata.requires(DISTRIBUTION) or ()}
    versions = {"python": platform.python_version()}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _files_in(options: object) -> Iterator[Path]:
    """Yield the file of every path and of every class (`package.module:Class`) in options, at any depth."""
    if isinstance(options, str):
        with suppress(OSError, ValueError, ImportError):
            module = find_spec(options.partition(":")[0]) if ":" in options else None
            file = Path(module.origin if module and module.origin else options)
            if file.is_file():
                yield file
    elif isinstance(options, Mapping):
        for option in options.values():
            yield from _files_in(option)
    elif isinstance(options, Sequence):
        for option in options:
            yield from _files_in(option)


def _hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def make_warm_start(
    folder: Path,
    settings: WarmStart,
    environment: EnvironmentSettings,
    agent: AgentSettings,
    on_progress: Progress,
) -> None:
    """Gather demonstrations, clone a model on them and save everything in `folder`."""
    # torch and transformers take seconds to import; a warm start that is found in the cache needs neither.
    from turnmill.training.warm_start import cloning

    started = time.perf_counter()
    tokenizer, rows = recipe_of(agent).demonstrations(environment, settings)
    shown_seconds = time.perf_counter() - started
    model = cloning.build_model(len(tokenizer), settings)
    loss = cloning.clone(model, rows, settings, on_progress)
    with _no_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made = {
        "loss": loss,
        "seconds": time.perf_counter() - started,
        "demonstration_seconds": shown_seconds,
        "vocabulary": len(tokenizer),
        "settings": settings.model_dump(mode="json", by_alias=True),
    }
    (folder / "warm_start.json").write_text(json.dumps(made, indent=2) + "\n")


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers draws one over whatever else the terminal shows."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
