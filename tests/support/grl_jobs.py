"""Jobs of GRL's agents; apart from `agents`, which processes of environments import, too."""

from typing import Any

from support.agents import counting
from turnmill.jobs import AgentTrainingJob
from turnmill.testing.agent_loops import job_of


def grl_job(*agents: dict[str, Any], **agent: Any) -> AgentTrainingJob:
    """A job of one step with agents in GRL's manner."""
    return job_of(
        {"type": "grl", "agents": list(agents or (counting(),)), "agentGroupNum": [2], "agentGroupSize": [2]} | agent,
        None,
        algorithm={"type": "ppo"},
    )
