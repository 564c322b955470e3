"""verl's training workers for the CPU; importing this module registers the CPU engines."""

from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.verl.cpu import engines  # noqa: F401  (registered on import)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):
    """Worker of the policy, its rollout and the reference model."""


class CpuTrainingWorker(TrainingWorker):
    """Worker of the critic."""
