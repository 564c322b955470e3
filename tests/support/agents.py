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


class DocumentedAgent:
    """A plain class with the four methods of GRL's documentation, which counts to its seed."""

    def __init__(self, config: Any, group_id: int = 0, agent_id: int = 0, seed: int = 0, tag: str = "") -> None:
        self.config, self.target, self.tag = config, seed, tag
        self.step = config.agent_config.get("step", 1)
        self.number, self.penalty = 0, 0.0
        self.messages: list[dict[str, str]] = []

    def get_llm_prompts(self, env_out: Any) -> list[dict[str, str]]:
        """Return the chat, with the state of the last output."""
        self.messages.append({"role": "user", "content": f"Count to {self.target}. {env_out.state}"})
        return self.messages

    def get_env_outputs(self, llm_response: str) -> dict[str, Any]:
        """Count on; anything but `next` costs 0.5."""
        said_next = llm_response.strip() == "next"
        self.messages.append({"role": "assistant", "content": f"I say {llm_response}"})
        self.penalty -= 0.0 if said_next else 0.5
        self.number += self.step if said_next else 0
        reached = self.number >= self.target
        return {"state": f"at {self.number}", "reward": float(said_next), "terminated": reached, "truncated": reached}

    def get_final_rollout_states(self) -> dict[str, Any]:
        """Return the penalty, and a metric without the tag."""
        metrics = {"success": self.number >= self.target, "number": self.number}
        return {"history": [], "penalty": self.penalty, "metrics": metrics}


class ResettableAgent(DocumentedAgent):
    """A plain class with the methods of GRL's own base class, whose environment lives on from episode to episode."""

    num_environments = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initialize_env()

    def initialize_env(self) -> None:
        """Count the environments that are made."""
        type(self).num_environments += 1

    def reset(self, seed: int | None = None) -> EnvOutput:
        """Begin an episode."""
        self.target, self.number, self.messages, self.penalty = seed or 0, 0, [], 0.0
        return EnvOutput("at the start")
