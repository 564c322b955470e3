"""Adapter of agents to the environment interface, so that they run in supervised processes."""

import json
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput, PlayedTurn
from turnmill.environments.grl.registry import get_agent_cls, list_agents
from turnmill.jobs.grl_agent import AgentConfig, NamedAgent

NAME = "turnmill.environments.grl.agent_adapter:AgentAdapter"
"""Import path, by which environment processes find the adapter."""

# Imports all agents once, for all processes that are forked from the one which imports this module.
list_agents()


class AgentView(BaseModel):
    """State of an agent after a turn, or before the first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: list[dict[str, str]]
    """Prompt of the next response as a chat, or the whole chat if the episode is over."""

    prefix: str = ""
    """Beginning of the response that is appended to the prompt."""

    state: str = ""
    response: str = ""
    """Last response, as it is kept in the chat."""

    actions: list[str] = Field(default_factory=list)
    """Actions that were executed in the last turn."""

    valid: bool = True
    """True if the last response contained an action, and none that is not allowed."""

    penalty: float = 0.0
    """Penalty of the last turn."""

    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics of the episode so far, prefixed by the agent's tag."""


class AgentAdapterOptions(EnvironmentOptions):
    """Type, tag and settings of the agent."""

    agent_type: str
    tag: str
    agent_config: dict[str, JsonValue] = Field(default_factory=dict)
    env_config: dict[str, JsonValue] = Field(default_factory=dict)


class AgentAdapter(Environment):
    """An agent as an environment: any text is an action, and every observation is an AgentView in JSON."""

    name: ClassVar[str] = "grl"
    Settings: ClassVar[type[EnvironmentOptions]] = AgentAdapterOptions
    actions = ()
    default_action = ""

    def __init__(self, task: str | None, max_turns: int, options: AgentAdapterOptions) -> None:
        super().__init__(task, max_turns, options)
        self.agent: BaseAgent = agent_of(
            NamedAgent(
                name=options.tag,
                agent_type=options.agent_type,
                agent_config=AgentConfig.model_validate(options.agent_config),
                env_config=options.env_config,
            )
        )

    def reset(self, seed: int) -> str:
        """Start the episode of a seed."""
        return self._view(self.agent.reset(seed))

    def step(self, action: str) -> StepResult:
        """Pass a response to the agent."""
        output = self.agent.get_env_outputs(action)
        truncated = not output.terminated and (output.truncated or self.agent.done)
        return StepResult(self._view(output), float(output.reward), output.terminated, truncated)

    def instruction_prompt(self) -> str:
        """Return an empty text: the agent writes its own prompts."""
        return ""

    def parse_action(self, text: str) -> str | None:
        """Return the response unchanged."""
        return text

    def close(self) -> None:
        """Close the agent."""
        self.agent.close()

    def _view(self, output: EnvOutput) -> str:
        agent = self.agent
        over = output.done or agent.done
        state = agent.get_final_rollout_states()
        messages = agent.get_messages() if over else agent.get_llm_prompts(output)
        # Only the chat shows how a plain agent has reworded the response.
        last = agent.turns[-1] if agent.turns else PlayedTurn(output.state, "", (), 0.0, 0.0, {})
        view = AgentView(
            messages=messages,
            prefix=agent.prefix,
            state=output.state,
            response=last.response,
            actions=list(last.actions),
            valid=last.valid,
            penalty=last.penalty,
            metrics={name: float(value) for name, value in state["metrics"].items()},
        )
        return view.model_dump_json()


def agent_of(named: NamedAgent, group_id: int = 0, agent_id: int = 0) -> BaseAgent:
    """Create an agent from its settings. Raises SettingsError if its class or its environment cannot be created."""
    try:
        agent_class = get_agent_cls(named.agent_type)
    except KeyError as error:
        raise SettingsError(f"agentType: {error.args[0]}") from None
    try:
        return agent_class(named, group_id, agent_id, tag=named.name)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(problem) for problem in error.errors())) from None
    except SettingsError as error:
        raise SettingsError(str(error).replace("environment.options.", "envConfig.")) from None


def _explain(problem: ErrorDetails) -> str:
    path = ".".join(["envConfig", *map(str, problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return f"{path}: the agent has no such setting. Look it up in docs/grl.md."
    return f"{path} ({problem['input']!r}): {problem['msg']}. Correct it."


def options_of(agent: NamedAgent) -> dict[str, JsonValue]:
    """Return an agent's settings as options of its adapter."""
    return {
        "agentType": agent.agent_type,
        "tag": agent.name,
        "agentConfig": json.loads(agent.agent_config.model_dump_json()),
        "envConfig": dict(agent.env_config),
    }
