"""Conversion of a GRL command line, or of one of its YAML files, into a job."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import OmegaConf

from turnmill.conversion.command_line import config_file
from turnmill.conversion.converted_job import Conversion
from turnmill.core.errors import SettingsError
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.training.grl.config import job_data
from turnmill.training.grl.config_files import with_defaults

CONFIGS = "configs"
"""Folder of GRL's files, which its script reads."""


def convert(words: Iterable[str], *, steps: int | None = None) -> Conversion:
    """Convert the words of a GRL command line, of which one may be the path of a YAML file.

    Raises SettingsError for a file that cannot be read and for settings under `rollout` that are not known.
    """
    words = list(words)
    files = [Path(word) for word in words if word.endswith(".yaml") and "=" not in word and not word.startswith("-")]
    named = config_file(words, beside=Path(CONFIGS))
    # The value of --config-name may end in .yaml as well.
    given = named or (files[0] if files else None)
    if given is None:
        raise SettingsError("No file of GRL's is named. Give --config-name base, or the path of its YAML.")
    config = with_defaults(given)
    for word in words:
        name, equals, text = word.strip().partition("=")
        if equals and not name.startswith("-"):
            OmegaConf.update(config, name.lstrip("+"), parse_yaml(text).value, merge=True, force_add=True)
    if steps is not None:
        OmegaConf.update(config, "trainer.total_training_steps", steps, force_add=True)
    return Conversion(job_data(config))
