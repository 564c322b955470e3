"""Settings of the training loop, its validations and its supervision."""

from typing import Literal

from pydantic import Field

from turnmill.jobs.settings import Seed, Settings


class ValidationSettings(Settings):
    """Validations: whole episodes with the current policy, before, during and after training."""

    episodes: int = Field(default=128, ge=0, le=100_000)
    """Episodes per validation; 0 turns validations off."""

    every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Steps between validations; left out, only before the first and after the last step."""

    samples: int = Field(default=1, ge=1, le=1024)
    """Times that each task is played, by agents of type `tool` and `multi_turn`. More than one add metrics `mean@N`,
    `best@N`, `worst@N` and, where the tasks give predictions, `maj@N`, as verl and verl-tool compute them."""

    seed: Seed = 0
    """Seed of the validation's episodes: each validation plays the same ones."""

    temperature: float = Field(default=1.0, ge=0, le=10)
    """Temperature at which responses are sampled; 0 takes the most likely token."""

    render_episodes: int = Field(default=0, ge=0, le=1000)
    """Episodes of each validation that are saved as animated pictures."""


class TimeoutSettings(Settings):
    """Limits of what may take longer than a step without any progress that could be noticed."""

    start_seconds: float = Field(default=3600, gt=0, le=86_400)
    """Seconds in which the models are loaded, the engines started and their kernels compiled."""

    checkpoint_seconds: float = Field(default=3600, gt=0, le=86_400)
    """Seconds in which a checkpoint is written."""

    request_seconds: float = Field(default=3600, gt=0, le=86_400)
    """Seconds in which an engine generates one response; after that its trajectory fails."""


class TrainingSettings(Settings):
    """Length of the training, size of its steps, validations and supervision."""

    steps: int = Field(ge=0, le=1_000_000)
    """Updates of the policy. With 0, the run only validates it, as with `turnmill run --evaluate`."""

    turns_per_step: int | None = Field(default=None, ge=1, le=1_000_000)
    """Turns gathered per step, spread evenly over the environments; with algorithm `turn_ppo`."""

    tasks_per_step: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tasks per step, each played `agent.groupSize` times; with every algorithm but `turn_ppo`."""

    checkpoint_every: int = Field(default=10, ge=1, le=1_000_000)
    """Steps between checkpoints; the last step always has one."""

    keep_checkpoints: int = Field(default=2, ge=1, le=1000)
    """Checkpoints to keep; older ones are deleted once a newer one is complete."""

    mode: Literal["sync", "colocate_async", "separate_async"] = "sync"
    """`sync` alternates rollout and learning, `colocate_async` overlaps them on the same devices, `separate_async` on
    separate devices."""

    max_staleness: int = Field(default=1, ge=1, le=64)
    """Steps that rollout may be ahead of learning in the asynchronous modes; tokens of older policies are not trained
    on."""

    seed: Seed = 0
    """Seed of environments, sampling and training."""

    stall_timeout_seconds: float = Field(default=600, gt=0, le=86_400)
    """Seconds without any progress during a step after which the run fails: no token was generated, no response
    finished, and no micro-batch computed."""

    timeouts: TimeoutSettings = TimeoutSettings()
    """Limits of the start, of checkpoints and of requests to engines."""

    max_failed_ratio: float = Field(default=0.5, ge=0, le=1)
    """Share of episodes that may fail for reasons other than the agent's behaviour; above it the run fails. With
    `tasksPerStep` it is the share of a step's trajectories."""

    validation: ValidationSettings = ValidationSettings()
    """Validations: whole episodes with the current policy, before, during and after training."""
