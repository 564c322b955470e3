"""BabaIsAI: forty puzzles whose rules are blocks of text on the map."""

from turnmill.environments.babaisai.environment import BabaIsAI, BabaIsAIOptions
from turnmill.environments.babaisai.levels import LEVELS

__all__ = ["LEVELS", "BabaIsAI", "BabaIsAIOptions"]
