"""Settings of the environment."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnmill.jobs.settings import FilePath, Settings, Word

SuccessRule = Literal["last_reward", "total_reward", "all_rewards", "environment"]


class EnvironmentSettings(Settings):
    """The environment, its processes and its rewards."""

    name: Annotated[str, Field(max_length=253)] = ""
    """Name of a registered environment, for example `babyai`; agents of type `grl` have environments of their own."""

    task: Word | None = None
    """Task within the environment; each environment documents its own."""

    count: int = Field(default=32, ge=1, le=4096)
    """Environments that run in parallel."""

    invalid_penalty: float = Field(default=0.1, ge=0, le=1000)
    """Subtracted from the reward of a turn whose response contains no allowed action."""

    binary_reward: bool = True
    """Count every positive reward as 1. Verlog does not unless it is told to, and its script for Crafter does not."""

    success: SuccessRule = "last_reward"
    """What makes an episode a success: `last_reward` its last reward is positive, `total_reward` their sum is, as in
    Verlog, `all_rewards` one is positive and none negative, `environment` what the environment itself says."""

    step_timeout_seconds: float = Field(default=30, gt=0, le=86_400)
    """Seconds for one action of an environment; an episode that exceeds them ends as `failed`."""

    reset_timeout_seconds: float = Field(default=60, gt=0, le=86_400)
    """Seconds for an environment to start an episode."""

    memory_mib: int = Field(default=8192, ge=256, le=1_048_576)
    """Memory limit of one environment in MiB; exceeding it ends the episode as `failed`."""

    python: FilePath | None = None
    """Python interpreter of the environment, in a virtual environment with turnmill and the environment's packages."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Options of the environment; each environment documents its own."""

    @property
    def label(self) -> str:
        """Name and task of the environment in one line."""
        return f"{self.name} {self.task or ''}".strip()
