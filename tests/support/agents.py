"""Agents in GRL's interface that count, and fail on request."""

import os
from typing import Any

from turnmill.environments.grl import BaseAgent, EnvOutput


class Counter(BaseAgent):
    """Counts up to three, with each number as its reward; `exit` ends the process, `raise` raises an error."""

    system_prompt = "You count."
    prompt = "Count to 3."

    def reset_env(self, seed: int) -> str:
        """Start at 0."""
        self.number = 0
        return f"at {self.number} of seed {seed}"

    def step_env(self, action: str) -> EnvOutput | None:
        """Set the number; 3 ends the episode."""
        if action == "exit":
            os._exit(3)
        if action == "raise":
            raise RuntimeError("raised on request")
        if not action.isdigit():
            return None
        self.number = int(action)
        info = {"action_is_effective": action != "0", "action_is_valid": True, "success": self.number == 3}
        return EnvOutput(f"at {self.number}", float(self.number), terminated=self.number == 3, info=info)


class LastTurnCounter(Counter):
    """A counter whose prompts have only the last turn."""

    def get_llm_prompts(self, env_out: EnvOutput) -> list[dict[str, str]]:
        """Return a chat with only the current turn."""
        return [{"role": "user", "content": self.turn_text(env_out)}]


def counter_agent(**config: Any) -> dict[str, Any]:
    """Return the section of a job for an agent that counts."""
    settings = {"maxTurns": 3, "maxActionsAllTurns": 4, "maxActionsPerTurn": 2} | config
    return {"name": "counter", "agentType": "support.agents:Counter", "agentConfig": settings}


def response_text(*actions: str, thought: str = "hm") -> str:
    """Return a response in the format of agents, without the tag that the prompt ends with."""
    return f"{thought}</think><answer>{'||'.join(actions)}</answer>"
