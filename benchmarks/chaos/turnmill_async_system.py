"""turnmill with rollout ahead of learning, on devices of its own."""

from chaos.turnmill_system import Turnmill

STEPS_AHEAD = 8
"""`training.maxStaleness`."""

PASSES = 8
"""`algorithm.epochs`: with one, learning takes less of the two cores than rollout, and steps wait for rollout."""

SYSTEM = Turnmill(
    "turnmill-async",
    algorithm=f"epochs: {PASSES}",
    training=f"mode: separate_async, maxStaleness: {STEPS_AHEAD}",
    resources="train: {accelerator: H100}, rollout: {accelerator: A40}",
)
