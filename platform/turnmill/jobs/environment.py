"""Settings of the environment."""

from typing import Annotated, Any

from pydantic import Field

from turnmill.jobs.settings import FilePath, Settings, Word


class EnvironmentSettings(Settings):
    """The environment, its processes and its rewards."""

    name: Annotated[str, Field(max_length=253)] = ""
    """Name of a registered environment, for example `babyai`; agents of type `grl` have environments of their own."""

    task: Word | None = None
    """Task within the environment; each environment names its own."""

    count: int = Field(default=32, ge=1, le=4096)
    """Environments that run side by side."""

    invalid_penalty: float = Field(default=0.1, ge=0, le=1000)
    """Taken as negative reward for a turn whose response holds no allowed action."""

    binary_reward: bool = True
    """Count every positive reward as 1."""

    step_timeout_seconds: float = Field(default=30, gt=0, le=86_400)
    """Time an environment may take for one action; after it the episode ends as `failed`."""

    reset_timeout_seconds: float = Field(default=60, gt=0, le=86_400)
    """Time an environment may take to begin an episode."""

    memory_mib: int = Field(default=8192, ge=256, le=1_048_576)
    """Memory in MiB that one environment may take; one that asks for more ends its episode as `failed`."""

    python: FilePath | None = None
    """Interpreter that runs the environment, of a virtual environment that has turnmill and packages of its own."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the environment's own; each environment documents its own."""

    @property
    def label(self) -> str:
        """Name and task of the environment in one line."""
        return f"{self.name} {self.task or ''}".strip()
