"""verl's training workers; importing this module in their processes registers the engines."""

import os

from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnmill.training.verl import fsdp_engines  # noqa: F401  (registered on import)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from turnmill.training.verl.cpu import engines  # noqa: F401


class PolicyWorker(ActorRolloutRefWorker):
    """Worker of the policy, its rollout and the reference model."""


class CriticWorker(TrainingWorker):
    """Worker of the critic."""
