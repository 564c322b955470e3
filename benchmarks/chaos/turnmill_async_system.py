"""turnmill with rollout ahead of learning, on devices of its own."""

from chaos.turnmill_system import Turnmill

STEPS_AHEAD = 8
"""`training.maxStaleness`."""

PASSES = 24
"""`algorithm.epochs`: by it a step takes 3 s, as without rollout ahead, and does not wait for rollout."""

SYSTEM = Turnmill(
    "turnmill-async",
    algorithm=f"epochs: {PASSES}",
    training=f"mode: separate_async, maxStaleness: {STEPS_AHEAD}",
    resources="train: {accelerator: H100}, rollout: {accelerator: A40}",
)
