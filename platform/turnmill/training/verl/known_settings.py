"""Names of verl's settings: those in its YAML files and those of the dataclasses behind them."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from turnmill.jobs.verl_settings import setting
from turnmill.training.verl.ineffective_settings import (
    WITH_EFFECT,
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_OF_ENGINE,
)

ENGINE = "actor_rollout_ref.rollout.name"
FSDP, MEGATRON = "fsdp", "megatron"
UNKNOWN = "is no setting of verl's"
NO_EFFECT = "has no effect here"
LOOK_UP = "Look it up in verl's documentation."
NEEDS_ENGINE = "It needs spec.resources.train.engine: %s."

NO_OTHER_ENGINE = (
    "is not supported: weight sync, restarts of engines, metrics and the CPU path are made for vLLM",
    "Leave it out for vLLM.",
)
"""Rule and way out for an engine such as SGLang or TensorRT-LLM."""

FSDP1_WITHOUT_GPUS = (
    "needs GPUs: PyTorch's first FSDP broadcasts weights between them, and this machine has none",
    "Leave it out for FSDP2, or run the job where GPUs are.",
)
"""Rule and way out for FSDP1 on CPUs."""

_STRATEGIES = tuple(
    f"{section}.{name}"
    for section, engine in (("actor_rollout_ref.actor", "fsdp_config"), ("actor_rollout_ref.ref", "fsdp_config"),
                            ("critic", "fsdp"))
    for name in ("strategy", f"{engine}.strategy")
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A name in `spec.verl` that a run cannot follow, with its value, the rule and the way out."""

    name: str
    value: object
    rule: str
    way_out: str


def refused_settings(
    settings: Mapping[str, object], engine: str, device: str | None, compose: Callable[[str], DictConfig]
) -> list[Refused]:
    """Return the names that a run with this engine on this device cannot follow; the device may be unknown.

    `compose` returns verl's defaults for an engine.
    """
    if not settings:
        return []
    found = []
    if _value(settings, ENGINE) not in (None, "vllm"):
        found.append(Refused(*_given(settings, ENGINE), *NO_OTHER_ENGINE))
    if device == "cpu":
        first = (name for name in _STRATEGIES if _value(settings, name) == FSDP)
        found += [Refused(*_given(settings, name), *FSDP1_WITHOUT_GPUS) for name in first]
    other = FSDP if engine == MEGATRON else MEGATRON
    unknown = unknown_names(compose(engine), settings)
    nowhere = dict(unknown_names(compose(other), {name: settings[name] for name, _ in unknown})) if unknown else {}
    for name, closest in unknown:
        reason = (UNKNOWN, _way_out(closest)) if name in nowhere else (NO_EFFECT, NEEDS_ENGINE % other)
        found.append(Refused(name, settings[name], *reason))
    for name, instead in names_without_effect(settings, engine):
        if name not in {each.name for each in found}:
            found.append(Refused(name, settings[name], NO_EFFECT, instead))
    return found


def _value(settings: Mapping[str, object], name: str) -> object:
    return setting(dict(settings), name, None)


def _given(settings: Mapping[str, object], wanted: str) -> tuple[str, object]:
    """Return the field that has a setting, maybe in a mapping, and the setting's value."""
    return next(name for name, part in _parts(settings) if part == wanted), _value(settings, wanted)


def names_without_effect(settings: Mapping[str, object], engine: str = FSDP) -> list[tuple[str, str]]:
    """Return the settings of an engine that have no effect here, each with what to set instead."""
    found: dict[str, str] = {}
    for name, part in _parts(settings):
        # The longest name is the most precise.
        unread = [each for each in WITHOUT_EFFECT if part == each or part.startswith(f"{each}.")]
        if unread and not _has_effect(part):
            found.setdefault(name, WITHOUT_EFFECT[max(unread, key=len)])
        for pattern, other in WITHOUT_EFFECT_OF_ENGINE[engine].items():
            if fnmatchcase(part, pattern):
                found.setdefault(name, NEEDS_ENGINE % other)
    return list(found.items())


def _has_effect(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in WITH_EFFECT)


def unknown_names(config: DictConfig, settings: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the settings that verl does not have, each with the closest name that it has (or "")."""
    unknown = [(name, part) for name, part in _parts(settings) if not _is_known(config, part)]
    names = sorted(_names(config)) if unknown else []
    return [(name, _closest(part, names)) for name, part in unknown]


def _way_out(closest: str) -> str:
    return f"Did you mean {closest}?" if closest else LOOK_UP


def _closest(wanted: str, names: list[str]) -> str:
    """Return the closest name, or "": any two names of a section are alike, so its last part must be close, too."""
    if nearly := difflib.get_close_matches(wanted, names, n=1, cutoff=0.95):
        return nearly[0]
    last = wanted.rpartition(".")[2]
    ends = difflib.get_close_matches(last, {name.rpartition(".")[2] for name in names}, n=5, cutoff=0.7)
    alike = [name for name in names if name.rpartition(".")[2] in ends]
    return next(iter(difflib.get_close_matches(wanted, alike, n=1)), "")


def _parts(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each name in the file with every setting below it: the value may be a mapping."""
    return ((name, part) for name, value in settings.items() for part in _flat(name, value))


def _flat(name: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name


def _is_known(config: DictConfig, name: str) -> bool:
    """Return True if a name is in the YAML files, or in the types of the dataclasses' fields."""
    node: DictConfig = config
    declared: object = None
    parts = name.split(".")
    for i, part in enumerate(parts):
        is_listed = part in node
        if not is_listed and (not node or _accepts(declared, part, node)):
            return True
        declared = _fields(_target(node) or declared).get(part)
        child = _child(node, part) if is_listed else None
        if child is None:
            rest = parts[i + 1 :]
            return (is_listed and not rest) or _has(declared, rest)
        node = child
    return True


def _accepts(declared: object, part: str, node: DictConfig) -> bool:
    """Return True if a mapping accepts a key that verl does not list, unless it looks like a misspelt one."""
    return _is_open(declared) and not difflib.get_close_matches(part, map(str, node), cutoff=0.75)


def _has(declared: object, rest: list[str]) -> bool:
    """Return True if the declared type of a field has a setting with the remaining name."""
    if declared is None:
        return False
    for part in rest:
        if _is_open(declared):
            return True
        declared = _fields(declared).get(part)
        if declared is None:
            return False
    return True


def _child(node: DictConfig, part: str) -> DictConfig | None:
    if OmegaConf.is_missing(node, part) or OmegaConf.is_interpolation(node, part):
        return None
    child = node[part]
    return child if isinstance(child, DictConfig) else None


def _target(node: DictConfig) -> object:
    return get_class(node._target_) if "_target_" in node else None


def _fields(declared: object) -> dict[str, object]:
    """Return the fields of a dataclass with their types; empty for any other type."""
    for option in _options(declared):
        if dataclasses.is_dataclass(option):
            hints = typing.get_type_hints(option)
            return {field.name: hints[field.name] for field in dataclasses.fields(option)}
    return {}


def _is_open(declared: object) -> bool:
    """Return True if a type accepts any key: the engine behind it validates them."""
    return any(option is Any or (typing.get_origin(option) or option) is dict for option in _options(declared))


def _options(declared: object) -> tuple[object, ...]:
    """Return the members of a union, or the type itself."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


def _names(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, config):
        yield f"{prefix}{key}"
        if (child := _child(config, key)) is not None:
            yield from _names(child, f"{prefix}{key}.")
