"""BabyAI levels of minigrid with a view in words."""

from turnmill.environments.babyai.environment import ACTIONS, BabyAI, BabyAIOptions
from turnmill.environments.babyai.text import SeenObject, describe, seen_objects

__all__ = ["ACTIONS", "BabyAI", "BabyAIOptions", "SeenObject", "describe", "seen_objects"]
