"""GRL's YAML files, each read over those that its `defaults` name."""

from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnmill.core.errors import SettingsError

PPO_TRAINER = "ppo_trainer"
"""verl's own settings, as GRL's files name them among their `defaults`."""


def with_defaults(file: Path) -> DictConfig:
    """Read a file over those that its list `defaults` names, in its order; verl's own settings are none of them."""
    config = _load(file)
    names = config.pop("defaults", None)
    if names is None:
        return config
    order = [str(name) for name in names]
    parts = []
    for name in order if "_self_" in order else [*order, "_self_"]:
        if name == "_self_":
            parts.append(config)
        elif (other := file.with_name(f"{name}.yaml")).exists():
            parts.append(with_defaults(other))
        elif name != PPO_TRAINER:
            raise SettingsError(f"defaults: {name} is no file beside {file}. Put {name}.yaml there, or take it out.")
    merged = OmegaConf.merge(*parts)
    assert isinstance(merged, DictConfig)
    return merged


def _load(file: Path) -> DictConfig:
    try:
        config = OmegaConf.load(file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}. Give the path of GRL's YAML.") from error
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid YAML: {' '.join(str(error).split())}. Correct it.") from error
    if not isinstance(config, DictConfig):
        raise SettingsError(f"{file} has no sections. Give the path of GRL's YAML.")
    return config
