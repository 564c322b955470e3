"""Base class of GRL's agents: prompts of a chat, parsed actions, a budget of actions, penalties."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from turnmill.environments.grl.final_state import RolloutState, TurnState
from turnmill.environments.grl.response_parser import ParsedResponse, parse_response
from turnmill.jobs.grl_agent import AgentConfig, NamedAgent

Message = dict[str, str]
"""`role` and `content`, as chat templates take them."""


@dataclass(frozen=True, slots=True)
class EnvOutput:
    """Output of an environment after an action or a turn, or before the first turn."""

    state: str = ""
    """Text of the state that the policy reads next."""

    reward: float = 0.0
    """Reward of the action, or the sum of the rewards of a turn's actions."""

    truncated: bool = False
    """True if a limit ended the episode."""

    terminated: bool = False
    """True if the task is over."""

    info: Mapping[str, Any] = field(default_factory=dict)
    """Info of the last action: `success`, `action_is_effective`, `action_is_valid` and other numbers."""

    @property
    def done(self) -> bool:
        """True if the episode is over, for whatever reason."""
        return self.truncated or self.terminated


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """Record of one turn."""

    state: str
    """State after the turn."""

    response: str
    """The response in normalized form, or unchanged if it did not have the required form."""

    actions: tuple[str, ...]
    """Actions that were executed."""

    reward: float
    penalty: float
    info: Mapping[str, Any]
    valid: bool = True
    """True if the response contained an action, and none that is not allowed."""

    raw_response: str = ""
    """The response as it was given."""


class BaseAgent(ABC):
    """An agent with an environment of its own, after GRL's class of the same name; it plays episode after episode.

    A subclass implements `reset_env` and `step_env`. It may override `get_llm_prompts` to write prompts in another
    form, and `get_env_outputs` to process whole responses. Agents are created in processes of their own, so the class
    must be importable there.
    """

    system_prompt: ClassVar[str] = "You are a helpful assistant."
    """System prompt, unless `agentConfig.systemPrompt` is set."""

    prompt: ClassVar[str] = ""
    """First part of the first user message, unless `agentConfig.prompt` is set."""

    one_action: ClassVar[bool] = False
    """True if a whole answer is one action, such as an SQL statement or a formula."""

    def __init__(
        self,
        config: Mapping[str, Any] | NamedAgent,
        group_id: int = 0,
        agent_id: int = 0,
        seed: int | None = None,
        tag: str | None = None,
    ) -> None:
        """Take `config`, a mapping with `agent_config` and `env_config` by GRL's names or those of a job file.

        `group_id` and `agent_id` identify the agent among those of a step, `seed` is the default of `reset`, and `tag`
        is the agent's name in metrics.
        """
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

    # ---- methods of subclasses ----

    @abstractmethod
    def reset_env(self, seed: int) -> str:
        """Start the episode of a seed and return its first state; the same seed must give the same episode."""

    @abstractmethod
    def step_env(self, action: str) -> EnvOutput | None:
        """Execute one action; return None, without executing anything, if it is not allowed."""

    def close(self) -> None:  # noqa: B027 (most agents hold nothing)
        """Release the resources of the agent, such as connections and processes."""

    def describe(self) -> str:
        """Return text that follows the prompt in the first turn, such as symbols and actions."""
        return ""

    # ---- an episode ----

    def reset(self, seed: int | None = None) -> EnvOutput:
        """Start an episode with a seed, by default the agent's own. Raises ValueError if there is neither."""
        seed = seed if seed is not None else self.seed
        if seed is None:
            raise ValueError(f"The agent {self.tag!r} has no seed: give one to it, or to reset.")
        self.turns, self.num_actions, self.done = [], 0, False
        self._state = self.reset_env(seed)
        self._messages = []
        return EnvOutput(self._state)

    def get_llm_prompts(self, env_out: EnvOutput) -> list[Message]:
        """Return the chat so far, to which the policy's response is generated; `env_out` is added to it."""
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
        """Beginning of the response that is appended to the prompt: `<think>`, `<answer>` or nothing."""
        if not self.agent_config.use_think_answer_token:
            return ""
        return "<think>" if self.agent_config.enable_think else "<answer>"

    def get_env_outputs(self, llm_response: str) -> EnvOutput:
        """Execute the actions of a response, one after another, until the episode is over or the budget is used up.

        Raises RuntimeError if there is no episode in progress.
        """
        if self.done:
            raise RuntimeError(f"The agent {self.tag!r} has no episode in progress: reset it first.")
        config = self.agent_config
        parsed = self.read(llm_response)
        reward, last, all_allowed = 0.0, EnvOutput(self._state), bool(parsed.actions)
        executed: list[str] = []
        for action in parsed.actions:
            if last.done or self.num_actions + len(executed) >= config.max_actions_all_turns:
                break
            output = self.step_env(action)
            if output is None:
                all_allowed = False
                continue
            executed.append(action)
            reward, last = reward + output.reward, output
        penalty = 0.0 if all_allowed else config.format_penalty
        self._state = last.state
        self.num_actions += len(executed)
        self.turns.append(
            PlayedTurn(last.state, parsed.text, tuple(executed), reward, penalty, last.info, all_allowed, llm_response)
        )
        self._messages.append({"role": "assistant", "content": parsed.text})
        spent = len(self.turns) >= config.max_turns or self.num_actions >= config.max_actions_all_turns
        self.done = last.done or spent
        return EnvOutput(
            last.state, reward, last.truncated or (spent and not last.terminated), last.terminated, last.info
        )

    def read(self, llm_response: str) -> ParsedResponse:
        """Parse the actions of a response, and normalize its text."""
        config = self.agent_config
        return parse_response(
            self.prefix + llm_response,
            think=config.enable_think,
            separator=None if self.one_action else config.action_separator,
            max_actions=config.max_actions_per_turn,
        )

    # ---- results ----

    @property
    def penalty(self) -> float:
        """Sum of the penalties of all turns so far."""
        return sum(turn.penalty for turn in self.turns)

    def get_messages(self) -> list[Message]:
        """Return the chat so far."""
        return [dict(message) for message in self._messages]

    def get_final_rollout_states(self) -> RolloutState:
        """Return GRL's summary of the episode: ids, turns (`history`), `penalty`, and `metrics` prefixed by the tag."""
        return {
            "env_id": self.agent_id,
            "group_id": self.group_id,
            "tag": self.tag,
            "history": list(self._history()),
            "penalty": self.penalty,
            "metrics": {f"{self.tag}/{name}": value for name, value in self.figures().items()},
        }

    def _history(self) -> Iterator[TurnState]:
        left = self.agent_config.max_actions_all_turns
        for turn in self.turns:
            left -= len(turn.actions)
            yield {
                "state": turn.state,
                "actions_left": left,
                "actions": list(turn.actions),
                "reward": turn.reward,
                "info": turn.info,
                "llm_response": turn.response,
                "llm_raw_response": turn.raw_response,
            }

    def figures(self) -> dict[str, float]:
        """Return the episode's metrics: success of any turn, number of actions, and means of the turns' `info`."""
        sums: dict[str, float] = {"action_is_effective": 0.0, "action_is_valid": 0.0}
        for turn in self.turns:
            for name, value in turn.info.items():
                if name != "success" and isinstance(value, (Real, bool)):
                    sums[name] = sums.get(name, 0.0) + float(value)
        success = any(float(turn.info.get("success", 0.0)) > 0 for turn in self.turns)
        means = {name: value / max(1, len(self.turns)) for name, value in sums.items()}
        return {"success": float(success), "num_actions": float(self.num_actions), **means}

    # ---- prompts ----

    def turn_text(self, env_out: EnvOutput) -> str:
        """Return the user message of a turn: its number, the state, the remaining actions and the form of an answer."""
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
    """Build an agent's settings from a mapping with GRL's names or those of a job file."""
    parts = {
        part: config.get(part, config.get(camel))
        for part, camel in (("agent_config", "agentConfig"), ("env_config", "envConfig"))
    }
    return NamedAgent(
        name=name,
        agent_type=name,
        agent_config=AgentConfig.model_validate(dict(parts["agent_config"] or {})),
        env_config=dict(parts["env_config"] or {}),
    )
