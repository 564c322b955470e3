"""turnmill with rollout ahead of learning, on devices of its own."""

from chaos.turnmill_system import Turnmill

STEPS_AHEAD = 8
"""`training.maxStaleness`."""

SYSTEM = Turnmill(
    "turnmill-async",
    training=f"mode: separate_async, maxStaleness: {STEPS_AHEAD}",
    resources="train: {accelerator: H100}, rollout: {accelerator: A40}",
)
