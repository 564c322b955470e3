"""What every agent does: word the turns of a chat, read actions out of answers, keep to its budget, count mistakes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from turnmill.environments.grl.answers import Answer, read_answer
from turnmill.jobs.grl_agent import AgentConfig, NamedAgent

Message = dict[str, str]
"""`role` and `content`, as chat templates take them."""


@dataclass(frozen=True, slots=True)
class EnvOutput:
    """What an environment shows after a turn, or before the first."""

    state: str = ""
    reward: float = 0.0
    """The sum over the turn's actions."""

    truncated: bool = False
    terminated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    """Of the turn's last action: `success`, `action_is_effective`, `action_is_valid` and other numbers."""

    @property
    def done(self) -> bool:
        """Whether the episode is over, for whatever reason."""
        return self.truncated or self.terminated


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn of an episode, as it is looked back on."""

    state: str
    response: str
    """As it was read: spelled anew where it kept to the form."""

    actions: tuple[str, ...]
    reward: float
    penalty: float
    info: Mapping[str, Any]
    valid: bool = True
    """Whether it held an action, and none that is not allowed."""


class BaseAgent(ABC):
    """One agent in one environment, episode after episode.

    A subclass says how an episode begins and what one action does; one that words its turns in another way overrides
    `get_llm_prompts`, one that takes whole responses `get_env_outputs`.
    """

    system_prompt: ClassVar[str] = "You are a helpful assistant."
    prompt: ClassVar[str] = ""
    one_action: ClassVar[bool] = False
    """Whether an answer is one action, whatever stands in it, as a statement or a formula is."""

    def __init__(
        self,
        config: Mapping[str, Any] | NamedAgent,
        group_id: int = 0,
        agent_id: int = 0,
        seed: int | None = None,
        tag: str | None = None,
    ) -> None:
        """`config` has `agent_config` and `env_config`, by GRL's names or by those of a job file."""
        named = config if isinstance(config, NamedAgent) else _named(config, tag or type(self).__name__)
        self.agent_config: AgentConfig = named.agent_config
        self.env_config: Mapping[str, Any] = named.env_config
        self.group_id, self.agent_id, self.seed = group_id, agent_id, seed
        self.tag = tag or named.name
        self.turns: list[PlayedTurn] = []
        self.num_actions = 0
        self.done = True
        self._messages: list[Message] = []
        self._state = ""

    # ---- what a subclass says ----

    @abstractmethod
    def reset_env(self, seed: int) -> str:
        """Begin the episode that a seed stands for and tell its state."""

    @abstractmethod
    def step_env(self, action: str) -> EnvOutput | None:
        """Do one action; None where it is not allowed, and nothing was done."""

    def close(self) -> None:  # noqa: B027 (most agents hold nothing)
        """Let go of what the agent holds."""

    def describe(self) -> str:
        """What is told after the prompt of the first turn, such as symbols and actions."""
        return ""

    # ---- an episode ----

    def reset(self, seed: int | None = None) -> EnvOutput:
        """Begin an episode; without a seed, that of the agent's own."""
        seed = seed if seed is not None else self.seed
        if seed is None:
            raise ValueError(f"The agent {self.tag!r} has no seed: give one to it, or to reset.")
        self.turns, self.num_actions, self.done = [], 0, False
        self._state = self.reset_env(seed)
        self._messages = []
        return EnvOutput(self._state)

    def get_llm_prompts(self, env_out: EnvOutput) -> list[Message]:
        """The chat that the policy is to answer."""
        if not self._messages:
            opening = "\n".join(part for part in (self._prompt(), self.describe()) if part)
            self._messages = [
                {"role": "system", "content": self._system_prompt()},
                {"role": "user", "content": f"{opening}\n{self.turn_text(env_out)}"},
            ]
        elif self._messages[-1]["role"] == "assistant":
            text = f"Reward: \n{env_out.reward:.10g}\n {self.turn_text(env_out)}"
            self._messages.append({"role": "user", "content": text})
        return [dict(message) for message in self._messages]

    @property
    def prefix(self) -> str:
        """What a response begins with, at the end of the prompt."""
        if not self.agent_config.use_think_answer_token:
            return ""
        return "<think>" if self.agent_config.enable_think else "<answer>"

    def get_env_outputs(self, llm_response: str) -> EnvOutput:
        """Do the actions of a response, one after another, until the episode is over or the budget is used."""
        if self.done:
            raise RuntimeError(f"The agent {self.tag!r} has no episode to act in: reset it first.")
        config = self.agent_config
        answer = self.read(llm_response)
        reward, last, all_allowed = 0.0, EnvOutput(self._state), bool(answer.actions)
        executed: list[str] = []
        for action in answer.actions:
            if last.done or self.num_actions + len(executed) >= config.max_actions_all_turns:
                break
            done = self.step_env(action)
            if done is None:
                all_allowed = False
                continue
            executed.append(action)
            reward, last = reward + done.reward, done
        penalty = 0.0 if all_allowed else config.format_penalty
        self._state = last.state
        self.num_actions += len(executed)
        self.turns.append(
            PlayedTurn(last.state, answer.text, tuple(executed), reward, penalty, last.info, valid=all_allowed)
        )
        self._messages.append({"role": "assistant", "content": answer.text})
        spent = len(self.turns) >= config.max_turns or self.num_actions >= config.max_actions_all_turns
        self.done = last.done or spent
        return EnvOutput(
            last.state, reward, last.truncated or (spent and not last.terminated), last.terminated, last.info
        )

    def read(self, llm_response: str) -> Answer:
        """The actions of a response, and the response as it is kept."""
        config = self.agent_config
        return read_answer(
            self.prefix + llm_response,
            think=config.enable_think,
            separator=None if self.one_action else config.action_separator,
            max_actions=config.max_actions_per_turn,
        )

    # ---- what it came to ----

    @property
    def penalty(self) -> float:
        """Of all turns so far."""
        return sum(turn.penalty for turn in self.turns)

    def get_final_rollout_states(self) -> dict[str, Any]:
        """What the episode came to: the chat, the penalty, and numbers by the agent's tag."""
        return {
            "env_id": self.agent_id,
            "group_id": self.group_id,
            "tag": self.tag,
            "history": [dict(message) for message in self._messages],
            "penalty": self.penalty,
            "metrics": {f"{self.tag}/{name}": value for name, value in self.figures().items()},
        }

    def figures(self) -> dict[str, float]:
        """Whether any turn succeeded, how many actions were done, and the mean over turns of what they tell of."""
        sums: dict[str, float] = {"action_is_effective": 0.0, "action_is_valid": 0.0}
        for turn in self.turns:
            for name, value in turn.info.items():
                if name != "success" and isinstance(value, (Real, bool)):
                    sums[name] = sums.get(name, 0.0) + float(value)
        success = any(float(turn.info.get("success", 0.0)) > 0 for turn in self.turns)
        means = {name: value / max(1, len(self.turns)) for name, value in sums.items()}
        return {"success": float(success), "num_actions": float(self.num_actions), **means}

    # ---- words ----

    def turn_text(self, env_out: EnvOutput) -> str:
        """What the policy is told in a turn: its number, the state, the budget, the form of an answer."""
        left = self.agent_config.max_actions_all_turns - self.num_actions
        return (
            f"Turn {len(self.turns) + 1}:\nState:\n{env_out.state}\nYou have {left} actions remaining. {self._form()}"
        )

    def _form(self) -> str:
        thought = "<think> [your thoughts] </think> " if self.agent_config.enable_think else ""
        return (
            f"Always answer in this form and with nothing else: {thought}<answer> [your answer] </answer>. "
            f"Keep to {self.agent_config.max_tokens} tokens."
        )

    def _system_prompt(self) -> str:
        given = self.agent_config.system_prompt
        return self.system_prompt if given is None else given

    def _prompt(self) -> str:
        given = self.agent_config.prompt
        return self.prompt if given is None else given


def _named(config: Mapping[str, Any], name: str) -> NamedAgent:
    """An agent's settings from a mapping as GRL has them, snake_case and all."""
    parts: dict[str, Any] = {
        part: config.get(part, config.get(camel))
        for part, camel in (("agent_config", "agentConfig"), ("env_config", "envConfig"))
    }
    return NamedAgent(
        name=name,
        agent_type=name,
        agent_config=AgentConfig.model_validate(dict(parts["agent_config"] or {})),
        env_config=dict(parts["env_config"] or {}),
    )
