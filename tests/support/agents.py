"""An agent in GRL's manner for tests: what it does is plain, and it breaks when it is told to."""

import os
from typing import Any

from turnmill.environments.grl import BaseAgent, EnvOutput


class Counter(BaseAgent):
    """Counts up to three, and every number is worth itself; `exit` ends its process, `raise` raises."""

    system_prompt = "You count."
    prompt = "Count to 3."

    def reset_env(self, seed: int) -> str:
        """Begin at 0."""
        self.number = 0
        return f"at {self.number} of seed {seed}"

    def step_env(self, action: str) -> EnvOutput | None:
        """Say a number; 3 is the end."""
        if action == "exit":
            os._exit(3)
        if action == "raise":
            raise RuntimeError("told to")
        if not action.isdigit():
            return None
        self.number = int(action)
        info = {"action_is_effective": action != "0", "action_is_valid": True, "success": self.number == 3}
        return EnvOutput(f"at {self.number}", float(self.number), terminated=self.number == 3, info=info)


class Forgetful(Counter):
    """Shows the policy the last turn alone."""

    def get_llm_prompts(self, env_out: EnvOutput) -> list[dict[str, str]]:
        """A chat that begins anew with every turn."""
        return [{"role": "user", "content": self.turn_text(env_out)}]


def counting(**config: Any) -> dict[str, Any]:
    """What a job says of an agent that counts."""
    settings = {"maxTurns": 3, "maxActionsAllTurns": 4, "maxActionsPerTurn": 2} | config
    return {"name": "counter", "agentType": "support.agents:Counter", "agentConfig": settings}


def say(*actions: str, thought: str = "hm") -> str:
    """A response of the form that agents want, after the tag that its prompt ends with."""
    return f"{thought}</think><answer>{'||'.join(actions)}</answer>"
