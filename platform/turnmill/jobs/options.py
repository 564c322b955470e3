"""Base class of what `environment.options` of a job may hold."""

from turnmill.jobs.settings import Settings


class EnvironmentOptions(Settings):
    """Options of an environment or a task source; each one adds its own fields."""
