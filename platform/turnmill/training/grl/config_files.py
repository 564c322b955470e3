"""YAML files of GRL and of verl, each read over those that its `defaults` name."""

from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnmill.core.errors import SettingsError

VERLS_OWN = ("ppo_trainer", "ppo_megatron_trainer")
"""verl's own settings, as files name them among their `defaults`."""


def with_defaults(file: Path) -> DictConfig:
    """Read a file over those that its list `defaults` names, in its order; verl's own settings are none of them."""
    config = _load(file)
    order = _names(config)
    config.pop("defaults", None)
    if not order:
        return config
    parts = []
    for name in order if "_self_" in order else [*order, "_self_"]:
        if name == "_self_":
            parts.append(config)
        elif (other := file.with_name(f"{name}.yaml")).exists():
            parts.append(with_defaults(other))
        elif name not in VERLS_OWN:
            raise SettingsError(f"defaults: {name} is no file beside {file}. Put {name}.yaml there, or take it out.")
    merged = OmegaConf.merge(*parts)
    assert isinstance(merged, DictConfig)
    return merged


def all_defaults(file: Path) -> list[str]:
    """Return the names of all files over which a file is read."""
    names = _names(_load(file))
    beside = [other for name in names if (other := file.with_name(f"{name}.yaml")).exists()]
    return [*names, *(name for other in beside for name in all_defaults(other))]


def _names(config: DictConfig) -> list[str]:
    return [str(name) for name in config.get("defaults") or ()]


def _load(file: Path) -> DictConfig:
    try:
        config = OmegaConf.load(file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}. Give the path of a YAML file.") from error
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid YAML: {' '.join(str(error).split())}. Correct it.") from error
    if not isinstance(config, DictConfig):
        raise SettingsError(f"{file} has no sections. Give the path of a file of settings.")
    return config
