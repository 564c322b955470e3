"""BIRD: questions about SQLite databases, answered in SQL."""

from turnmill.environments.bird.environment import Bird, BirdOptions

__all__ = ["Bird", "BirdOptions"]
