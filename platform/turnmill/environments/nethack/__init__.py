"""NetHack, observed as the text of its screen."""

from turnmill.environments.nethack.environment import NetHack, NetHackEnvironment, NetHackOptions

__all__ = ["NetHack", "NetHackEnvironment", "NetHackOptions"]
