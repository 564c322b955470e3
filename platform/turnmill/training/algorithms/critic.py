"""verl's settings of the critic."""

from typing import Protocol

from turnmill.jobs.verl_settings import VerlSettings


class CriticSettings(Protocol):
    """Settings of an algorithm with a critic."""

    @property
    def value_clip(self) -> float:
        """Clip range of the critic's values around those before the update."""

    @property
    def gradient_clip(self) -> float:
        """Maximum norm of the gradients."""

    @property
    def critic_learning_rate(self) -> float:
        """Learning rate of the critic."""

    @property
    def weight_decay(self) -> float:
        """Weight decay of the optimizer."""

    @property
    def adam_betas(self) -> tuple[float, ...]:
        """Decay rates of the optimizer's averages."""

    @property
    def learning_rate_schedule(self) -> str:
        """Schedule of the learning rate until the last step: `constant` or `cosine`."""


def critic_settings(settings: CriticSettings, *, minibatch: int, seed: int) -> VerlSettings:
    """Return the critic's settings, by verl's dotted names."""
    return {
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        "critic.fsdp.strategy": "fsdp2",
        "critic.ppo_mini_batch_size": minibatch,
        "critic.cliprange_value": settings.value_clip,
        "critic.optim.clip_grad": settings.gradient_clip,
        "critic.data_loader_seed": seed,
        "critic.fsdp.seed": seed,
        "critic.optim.lr": settings.critic_learning_rate,
        "critic.optim.weight_decay": settings.weight_decay,
        "critic.optim.betas": list(settings.adam_betas),
        "critic.optim.lr_scheduler_type": settings.learning_rate_schedule,
    }
