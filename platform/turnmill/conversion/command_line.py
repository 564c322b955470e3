"""Settings of verl as they stand in a command line: `name=value`, and the file that `--config-name` names."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from turnmill.core.errors import SettingsError
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.training.grl.config_files import VERLS_OWN, all_defaults, with_defaults

ENGINE = "model_engine"
"""verl's own name for the engine of the training."""


def read_settings(words: Iterable[str]) -> dict[str, object]:
    """Return the settings among the words of a command line, and below them those of the file that it names.

    Words without `=` are skipped, and so is what is null, as if nobody had set it.
    """
    words = list(words)
    given = _of_file(words)
    for word in words:
        name, equals, text = word.strip().partition("=")
        if equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w.]*", name):
            given[name.lstrip("+")] = parse_yaml(text).value
    if not given:
        raise SettingsError("The command line has no setting of verl's. Write it as name=value.")
    if given.get("actor_rollout_ref.actor.strategy") == "megatron":
        given[ENGINE] = "megatron"
    is_said_by_engine = {name for name, value in given.items() if name.endswith(".strategy") and value == "megatron"}
    return {name: value for name, value in given.items() if value is not None and name not in is_said_by_engine}


def config_file(words: Sequence[str], *, beside: Path = Path()) -> Path | None:
    """Return the file that `--config-name` names, in the folder of `--config-path`; None if it is one of verl's own."""
    name = _option(words, "config-name")
    if name is None or (name := name.removesuffix(".yaml")) in VERLS_OWN:
        return None
    folder = _option(words, "config-path") or _option(words, "config-dir")
    return (beside if folder is None else Path(folder)) / f"{name}.yaml"


def _of_file(words: Sequence[str]) -> dict[str, object]:
    file = config_file(words)
    name = (_option(words, "config-name") or "").removesuffix(".yaml")
    read = {} if file is None else OmegaConf.to_container(with_defaults(file), resolve=True)
    assert isinstance(read, dict)
    # How Hydra works is no setting of the training.
    flat = {name: value for name, value in _flat(read) if not name.startswith("hydra.")}
    own = [name] if file is None else all_defaults(file)
    return flat | ({ENGINE: "megatron"} if any("megatron" in each for each in own) else {})


def _option(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option, which follows it after `=` or as the next word."""
    for position, word in enumerate(words):
        if word == f"--{name}":
            return words[position + 1] if position + 1 < len(words) else None
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def _flat(node: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
