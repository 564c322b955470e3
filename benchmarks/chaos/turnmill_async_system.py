"""turnmill with rollout ahead of learning, on devices of its own."""

from chaos.turnmill_system import Turnmill

STEPS_AHEAD = 6
"""`training.maxStaleness`."""

SYSTEM = Turnmill(
    "turnmill-async",
    tasks_per_step=16,
    training=f"mode: separate_async, maxStaleness: {STEPS_AHEAD}",
    resources="train: {accelerator: H100}, rollout: {accelerator: A40}",
)
