"""Records which of verl's settings a run reads: every process of the run loads this module with verl.

Set `VERL_USE_EXTERNAL_MODULES=support.setting_reads`, and `TURNMILL_SETTING_READS` to a folder. Settings are read from
OmegaConf's tree and from the dataclasses that verl makes of its sections. What converts, prints, copies or validates
whole sections is no reader.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

FOLDER = "TURNMILL_SETTING_READS"

PATH = "_path_of_settings"
CONVERTERS = ("omegaconf", "hydra", "dataclasses", "copy", "pickle", "cloudpickle", "ray.cloudpickle", "pprint", "json")
"""Packages that read whole sections, whatever is in them."""

CONVERSIONS = frozenset({"__getstate__", "__reduce__", "__repr__", "__eq__"})
WHOLE_SECTIONS = frozenset({"items_ex", "items", "_to_content", "to_container", "__eq__", "_dict_conf_eq"})
PASSED_ON = frozenset({"strategy", "ulysses_sequence_parallel_size", "warmup_style"})
"""Fields that `__post_init__` writes into others; what it reads besides, it only checks."""

INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)")
OF_THE_QUEUE = ("backend", "controller", "metrics")
"""Sections of `transfer_queue`, which the queue's processes have as a configuration of its own."""

_seen: set[str] = set()


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of a run whose reads are recorded in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"VERL_USE_EXTERNAL_MODULES": __name__, FOLDER: str(folder)}


def read_settings(folder: Path, defaults: DictConfig) -> set[str]:
    """Return the names of all settings that the processes of a run have read, also through another's interpolation."""
    raw = OmegaConf.to_container(defaults, resolve=False)
    values, classes = dict(_values(raw)), _sections_by_class(raw)
    recorded = {line for file in folder.iterdir() for line in file.read_text().split()}
    names = {name for line in recorded for name in _names_of(line, classes)}
    found = set[str]()
    while names:
        found |= names
        texts = [text for name in names if isinstance(text := values.get(name), str)]
        names = {source for text in texts for source in INTERPOLATION.findall(text)} - found
    return found


def _names_of(line: str, classes: dict[str, list[str]]) -> Iterator[str]:
    section, _, rest = line.partition(".")
    if section.startswith("?"):
        # Its place in the tree is not known: it may be any section of its class.
        yield from (f"{path}.{rest}" for path in classes.get(section[1:], ()))
    else:
        yield f"transfer_queue.{line}" if section in OF_THE_QUEUE else line


def _values(node: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")


def _sections_by_class(raw: Any) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    for name, value in _values(raw):
        if name.endswith("._target_"):
            classes.setdefault(str(value).rpartition(".")[2], []).append(name.removesuffix("._target_"))
    return classes


def _record(name: str) -> None:
    if name not in _seen:
        _seen.add(name)
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
            file.write(f"{name}\n")


def _is_read_by_someone(name: str) -> bool:
    """Return whether the frame that asks for a setting, the first one outside of the configuration, is a reader."""
    frame: FrameType | None = sys._getframe(2)
    module = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith("omegaconf.") and module not in (__name__, "verl.base_config"):
            break
        if frame.f_code.co_name in WHOLE_SECTIONS:
            return False
        frame = frame.f_back
    if frame is None or frame.f_code.co_name in CONVERSIONS or frame.f_code.co_filename == "<string>":
        return False
    if frame.f_code.co_name == "__post_init__":
        # That of HFModelConfig loads the model's configuration and tokenizer.
        return name in PASSED_ON or type(frame.f_locals.get("self")).__name__ == "HFModelConfig"
    return not module.startswith(tuple(f"{each}." for each in CONVERTERS)) and module not in CONVERTERS


def _watch_tree() -> None:
    for method in ("_get_impl", "pop"):
        setattr(DictConfig, method, _watched(getattr(DictConfig, method)))


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_read_by_someone(str(key)):
            _record(self._get_full_key(key))
        return original(self, key, *args, **kwargs)

    return watched


def _watch_dataclasses() -> None:
    import hydra.utils
    from verl.base_config import BaseConfig

    def read(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in type(self).__dataclass_fields__ and _is_read_by_someone(name):
            path = object.__getattribute__(self, "__dict__").get(PATH, f"?{type(self).__name__}")
            _record(f"{path}.{name}")
        return value

    BaseConfig.__getattribute__ = read
    original = hydra.utils.instantiate

    @functools.wraps(original)
    def instantiate(config: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(config, *args, **kwargs)
        if isinstance(made, BaseConfig) and isinstance(config, DictConfig):
            _name_sections(made, config._get_full_key(None))
        return made

    hydra.utils.instantiate = instantiate


def _name_sections(made: Any, path: str) -> None:
    values = object.__getattribute__(made, "__dict__")
    values[PATH] = path
    for name, value in [*values.items()]:
        if hasattr(type(value), "__dataclass_fields__") and hasattr(value, "__dict__"):
            _name_sections(value, f"{path}.{name}")


if FOLDER in os.environ:
    _watch_tree()
    _watch_dataclasses()
