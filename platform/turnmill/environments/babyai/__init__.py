"""BabyAI levels of minigrid, observed in words."""

from turnmill.environments.babyai.environment import ACTIONS, BabyAI, BabyAIOptions
from turnmill.environments.babyai.text import VisibleObject, describe, visible_objects

__all__ = ["ACTIONS", "BabyAI", "BabyAIOptions", "VisibleObject", "describe", "visible_objects"]
