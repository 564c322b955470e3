"""turnmill with rollout ahead of learning, on devices of its own."""

from chaos.turnmill_system import Turnmill

STEPS_AHEAD = 16
"""`training.maxStaleness`: less time than one step of most trainings, and more than the longest fault lasts."""

PASSES = 24
"""`algorithm.epochs`: by it a step takes 2.3 s and waits for learning, not for rollout."""

SYSTEM = Turnmill(
    "turnmill-async",
    algorithm=f"epochs: {PASSES}",
    training=f"mode: separate_async, maxStaleness: {STEPS_AHEAD}",
    resources="train: {accelerator: H100}, rollout: {accelerator: A40}",
)
