"""Advantages and returns, of turns and of whole trajectories."""

from turnmill.training.advantages.gae import dual_discount_gae

__all__ = ["dual_discount_gae"]
