"""NeMo Gym: its resources servers by their addresses, its agents as programs of agents of type `harness`.

Each trajectory starts a process that imports this package, so it needs the standard library alone; only `rows`, which
has the tasks, needs more.
"""

from turnmill.nemo_gym.agents import gymnasium_agent, simple_agent

__all__ = ["gymnasium_agent", "simple_agent"]
