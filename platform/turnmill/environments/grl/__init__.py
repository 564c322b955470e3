"""GRL's agents: each owns an environment, writes the prompts of its turns and parses actions from responses."""

from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput
from turnmill.environments.grl.environment_agent import EnvironmentAgent
from turnmill.environments.grl.registry import get_agent_cls, list_agents, register_agent

__all__ = ["BaseAgent", "EnvOutput", "EnvironmentAgent", "get_agent_cls", "list_agents", "register_agent"]
