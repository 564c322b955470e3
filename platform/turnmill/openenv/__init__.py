"""OpenEnv: the client of its servers, and an agent whose functions are the tools of an environment."""

from turnmill.openenv.agent import play

__all__ = ["play"]
