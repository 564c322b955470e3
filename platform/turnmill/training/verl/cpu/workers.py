"""verl's training workers for the CPU: where they go, the CPU engines are registered."""

from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.verl.cpu import engines  # noqa: F401  (registered on import)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):
    """The policy, its rollout and the reference model."""


class CpuTrainingWorker(TrainingWorker):
    """The critic."""
