"""Makes a warm start once and keeps it: a Hugging Face folder named after everything that made it."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.recipes import recipe_of

Progress = Callable[[int, int, float], None]

RECIPE_VERSION = 2
"""Raised by whoever changes what a warm start is made of, so that no stale one is used again."""


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
    """A name for a warm start that changes with everything that makes it."""
    world = [environment.name, environment.task, environment.options]
    made_of = [RECIPE_VERSION, settings.model_dump(mode="json"), world, *recipe_of(agent).ingredients()]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


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
