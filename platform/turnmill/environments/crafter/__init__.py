"""Crafter, observed in words."""

from turnmill.environments.crafter.environment import Crafter, CrafterOptions
from turnmill.environments.crafter.game import CrafterGame

__all__ = ["Crafter", "CrafterGame", "CrafterOptions"]
