"""Jobs of GRL's agents; separate from `agents`, which environment processes import."""

from typing import Any

from support.agents import counter_agent
from turnmill.jobs import AgentTrainingJob
from turnmill.testing.agent_loops import job_of


def grl_job(*agents: dict[str, Any], **agent: Any) -> AgentTrainingJob:
    """Return a job of one step with agents in GRL's interface."""
    return job_of(
        {"type": "grl", "agents": list(agents or (counter_agent(),)), "agentGroupNum": [2], "agentGroupSize": [2]}
        | agent,
        None,
        algorithm={"type": "ppo"},
    )
