"""Agents that are plain classes with the methods of GRL's documentation, such as those of GRL itself."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput, Message, PlayedTurn
from turnmill.environments.grl.final_state import RolloutState
from turnmill.jobs.grl_agent import NamedAgent

METHODS = ("get_llm_prompts", "get_env_outputs", "get_final_rollout_states")
"""Methods of a plain agent besides `__init__`."""


class GrlAgent(Protocol):
    """A plain agent; GRL's own also has `reset`, which begins another episode with the same environment."""

    def get_llm_prompts(self, env_out: object) -> list[Message]:
        """Return the chat to which the policy's response is generated."""

    def get_env_outputs(self, llm_response: str) -> object:
        """Execute a response."""

    def get_final_rollout_states(self) -> Mapping[str, object]:
        """Return `history`, `penalty` and `metrics` of the episode."""


class Section(dict[str, object]):
    """A section of GRL's configuration, whose values are items and attributes as those of OmegaConf are."""

    def __getattr__(self, name: str) -> object:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def is_plain_agent(found: object) -> bool:
    """Return True for a class with the methods of GRL's documentation."""
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in METHODS)


class PlainAgent(BaseAgent):
    """Plays a plain agent: one of its class for each episode, or one for all if it has `reset`."""

    plain_class: type

    def __init__(
        self,
        config: Mapping[str, object] | NamedAgent,
        group_id: int = 0,
        agent_id: int = 0,
        seed: int | None = None,
        tag: str | None = None,
    ) -> None:
        super().__init__(config, group_id, agent_id, seed, tag)
        # With a seed even where the first episode brings another: the class may need one.
        self._agent: GrlAgent = self._create(seed or 0)
        self._spent = 0.0

    def _create(self, seed: int) -> GrlAgent:
        given = {name: value for name, value in self.agent_config.model_dump().items() if value is not None}
        # A setting of the class's own is beside the others in GRL's YAML.
        environment = Section({name: _with_number_keys(value) for name, value in self.env_config.items()})
        config = Section(agent_config=Section(given.pop("options") | given), env_config=environment)
        ids = {"group_id": self.group_id, "agent_id": self.agent_id}
        created: GrlAgent = self.plain_class(config, **ids, seed=seed, tag=self.tag)
        return created

    def reset_env(self, seed: int) -> str:
        """Raise AssertionError: `reset` of the plain agent replaces it."""
        raise AssertionError("a plain agent is reset as a whole")

    def step_env(self, action: str) -> EnvOutput | None:
        """Raise AssertionError: `get_env_outputs` of the plain agent replaces it."""
        raise AssertionError("a plain agent executes whole responses")

    def reset(self, seed: int | None = None) -> EnvOutput:
        """Begin the episode of a seed: by the agent's own `reset`, or with a new agent."""
        seed = self.seed or 0 if seed is None else seed
        self.turns, self.done, self._messages, self._spent = [], False, [], 0.0
        reset = getattr(self._agent, "reset", None)
        if reset is not None:
            opening = reset(seed=seed)
        else:
            self._close_plain()
            self._agent, opening = self._create(seed), None
        self._spent = self.penalty
        return self._output(opening)

    def get_llm_prompts(self, env_out: EnvOutput) -> list[Message]:
        """Return the agent's chat; the response in it, which the agent may have reworded, is the last turn's."""
        messages = [dict(message) for message in self._agent.get_llm_prompts(env_out)]
        answered = messages[len(self._messages) :][:1]
        if self.turns and answered and answered[0]["role"] == "assistant":
            self.turns[-1] = replace(self.turns[-1], response=answered[0]["content"])
        self._messages = messages
        return messages

    def get_env_outputs(self, llm_response: str) -> EnvOutput:
        """Pass a response to the agent."""
        output = self._output(self._agent.get_env_outputs(llm_response))
        spent, self._spent = self._spent, self.penalty
        penalty = self._spent - spent
        valid = bool(output.info.get("action_is_valid", penalty == 0))
        self.turns.append(
            PlayedTurn(
                output.state, self.prefix + llm_response, (), output.reward, penalty, output.info, valid, llm_response
            )
        )
        limited = len(self.turns) >= self.agent_config.max_turns
        self.done = output.done or limited
        return EnvOutput(output.state, output.reward, output.truncated or limited, output.terminated, output.info)

    @property
    def penalty(self) -> float:
        """Sum of the penalties of all turns so far, as the agent gives it."""
        return _number(self._agent.get_final_rollout_states().get("penalty") or 0.0, "penalty")

    def get_messages(self) -> list[Message]:
        """Return the whole chat."""
        last = [{"role": "assistant", "content": self.turns[-1].response}] if self.turns and self.done else []
        return [*super().get_messages(), *last]

    def get_final_rollout_states(self) -> RolloutState:
        """Return the summary with the agent's own penalty and metrics."""
        given = self._agent.get_final_rollout_states().get("metrics")
        metrics = {str(name): _number(value, str(name)) for name, value in dict(given or {}).items()}  # type: ignore[call-overload]
        # Without a prefix, and without success where the agent gives none.
        named = {name if "/" in name else f"{self.tag}/{name}": value for name, value in metrics.items()}
        solved = any(float(turn.info.get("success") or 0.0) > 0 for turn in self.turns)
        state = super().get_final_rollout_states()
        state["metrics"] = {f"{self.tag}/success": float(solved)} | named
        return state

    def close(self) -> None:
        """Close the agent, if it can be closed."""
        self._close_plain()

    def _close_plain(self) -> None:
        close = getattr(self._agent, "close", None)
        if close is not None:
            close()

    def _output(self, given: object) -> EnvOutput:
        """Return an agent's output, an object or a mapping with the fields of GRL's EnvOutput, as ours."""
        if given is None:
            return EnvOutput()

        def read(name: str, otherwise: object) -> object:
            value = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
            return otherwise if value is None else value

        info = read("info", {})
        return EnvOutput(
            str(read("state", "")),
            _number(read("reward", 0.0), "reward"),
            truncated=bool(read("truncated", False)) and not bool(read("terminated", False)),
            terminated=bool(read("terminated", False)),
            info=dict(info) if isinstance(info, Mapping) else {},
        )


def plain_agent(found: type) -> type[PlainAgent]:
    """Return a class of agents that plays a plain class."""
    names = {"plain_class": found, "__module__": found.__module__, "__qualname__": found.__qualname__}
    made: type[PlainAgent] = type(found.__name__, (PlainAgent,), names)
    return made


def _with_number_keys(value: object) -> object:
    """Return a value of a job, where all keys are text, with the numbers among them as GRL's YAML has them."""
    if not isinstance(value, Mapping):
        return value
    return {int(key) if str(key).isdecimal() else key: _with_number_keys(inner) for key, inner in value.items()}


def _number(value: object, name: str) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise EnvironmentFailedError(f"An agent returned {value!r} as {name}, which is no number.") from error
