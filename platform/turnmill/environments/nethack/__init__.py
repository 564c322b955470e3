"""NetHack, told by its screen."""

from turnmill.environments.nethack.environment import Dungeon, DungeonOptions, NetHack

__all__ = ["Dungeon", "DungeonOptions", "NetHack"]
