"""The `status` of the custom resource, which the operator writes."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings

MAX_FAILED_NODES = 8

ConditionType = Literal["Admitted", "ClusterReady", "Running", "Complete", "Failed", "Suspended"]


NodeName = Annotated[str, Field(max_length=253)]


class Condition(Settings):
    """One observation, in the form of Kubernetes' own conditions."""

    type: ConditionType
    """State that a client may wait for."""

    status: Literal["True", "False", "Unknown"]
    """`True` if the job is in that state, `False` if not."""

    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the resource that was observed."""

    last_transition_time: datetime
    """Time of the last change of `status`."""

    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
    """One CamelCase word for programs."""

    message: Annotated[str, Field(max_length=4096)]
    """Explanation for people, with the way out."""


class JobProgress(Settings):
    """Progress of the run."""

    step: int = Field(default=0, ge=0)
    """Last completed step."""

    steps: int | None = Field(default=None, ge=0)
    """Number of steps of the run."""

    success: float | None = None
    """Share of solved episodes in the last step."""

    reward_mean: float | None = None
    """Mean reward of the episodes that ended in the last step."""

    rollouts_per_second: float | None = None
    """Episodes ended per second."""

    infra_failed_ratio: float | None = None
    """Share of episodes that failed for reasons other than the agent's behaviour."""

    checkpoint_step: int | None = Field(default=None, ge=0)
    """Step of the newest complete checkpoint."""

    damaged_checkpoints: int | None = Field(default=None, ge=0)
    """Checkpoints that were set aside because their files were damaged."""


class JobStatus(Settings):
    """State of the job as the operator last observed it."""

    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the resource that was observed."""

    state: Annotated[str, Field(max_length=64)] | None = None
    """Summary of the conditions in one word, for lists."""

    attempt: int = Field(default=0, ge=0)
    """Attempts started so far; only the last one may write checkpoints and trajectories."""

    failed_attempts: int = Field(default=0, ge=0)
    """Attempts that failed; those that were suspended or disrupted do not count."""

    disrupted_attempts: int = Field(default=0, ge=0)
    """Attempts that ended because one of their pods was evicted, preempted or lost with its node."""

    failed_nodes: Annotated[tuple[NodeName, ...], Field(strict=False, max_length=MAX_FAILED_NODES)] = ()
    """Nodes on which pods of failed attempts died, which later attempts avoid while there are others."""

    cluster: Annotated[str, Field(max_length=253)] | None = None
    """Ray cluster of the last attempt."""

    progress: JobProgress | None = None
    """Progress of the run."""

    next_attempt_time: datetime | None = None
    """Start of the next attempt, after a failed one."""

    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=8)] = ()
    """Conditions, one of each type."""
