"""GRL's YAML files, which are read as verl's are."""

from turnmill.training.verl.config_files import with_defaults as with_defaults
