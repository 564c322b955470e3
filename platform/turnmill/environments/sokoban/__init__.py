"""Sokoban with the rooms of GRL."""

from turnmill.environments.sokoban.environment import Sokoban, SokobanOptions
from turnmill.environments.sokoban.rooms import generate_room

__all__ = ["Sokoban", "SokobanOptions", "generate_room"]
