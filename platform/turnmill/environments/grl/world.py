"""An agent as an environment, so that it runs in a supervised process: responses go in, chats come out."""

import json
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput, PlayedTurn
from turnmill.environments.grl.registry import get_agent_cls, list_agents
from turnmill.jobs.grl_agent import AgentConfig, NamedAgent

NAME = "turnmill.environments.grl.world:AgentWorld"
"""What an environment process finds it by."""

# Here, once for all processes that are forked from the one which imports this.
list_agents()


class AgentView(BaseModel):
    """What the agent shows after a turn, or before the first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: list[dict[str, str]]
    """The chat; what the policy is to answer, or all of it where the episode is over."""

    prefix: str = ""
    """What the response begins with."""

    state: str = ""
    response: str = ""
    """The last response as the agent keeps it."""

    actions: list[str] = Field(default_factory=list)
    """Of the last turn, those that were done."""

    valid: bool = True
    """Whether the last turn held an action, and none that is not allowed."""

    penalty: float = 0.0
    """Of the last turn."""

    metrics: dict[str, float] = Field(default_factory=dict)
    """Of the episode so far, by the agent's tag."""


class WorldOptions(EnvironmentOptions):
    """Which agent, with which settings."""

    agent_type: str
    tag: str
    agent_config: dict[str, Any] = Field(default_factory=dict)
    env_config: dict[str, Any] = Field(default_factory=dict)


class AgentWorld(Environment):
    """Any text is an action, and every observation is an AgentView."""

    name: ClassVar[str] = "grl"
    Settings: ClassVar[type[EnvironmentOptions]] = WorldOptions
    actions = ()
    default_action = ""

    def __init__(self, task: str | None, max_turns: int, options: WorldOptions) -> None:
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
        """Begin the episode of a seed."""
        return self._show(self.agent.reset(seed))

    def step(self, action: str) -> StepResult:
        """Give the agent a response."""
        output = self.agent.get_env_outputs(action)
        done = output.terminated, output.truncated or self.agent.done
        return StepResult(
            self._show(output), float(output.reward), terminated=done[0], truncated=not done[0] and done[1]
        )

    def instruction_prompt(self) -> str:
        """Nothing: the agent words its own prompts."""
        return ""

    def parse_action(self, text: str) -> str | None:
        """The response as it is."""
        return text

    def close(self) -> None:
        """Let go of what the agent holds."""
        self.agent.close()

    def _show(self, output: EnvOutput) -> str:
        agent = self.agent
        over = output.done or agent.done
        state = agent.get_final_rollout_states()
        last = agent.turns[-1] if agent.turns else PlayedTurn(output.state, "", (), 0.0, 0.0, {})
        view = AgentView(
            messages=state["history"] if over else agent.get_llm_prompts(output),
            prefix=agent.prefix,
            state=output.state,
            response=last.response,
            actions=list(last.actions),
            valid=last.valid,
            penalty=last.penalty,
            metrics={name: float(value) for name, value in state["metrics"].items()},
        )
        return view.model_dump_json()


def agent_of(named: NamedAgent) -> BaseAgent:
    """The agent that settings name. Raises SettingsError for a type or an environment that cannot be made."""
    try:
        agent_class = get_agent_cls(named.agent_type)
    except KeyError as error:
        raise SettingsError(f"agentType: {error.args[0]}") from None
    try:
        return agent_class(named, tag=named.name)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(problem) for problem in error.errors())) from None
    except SettingsError as error:
        raise SettingsError(str(error).replace("environment.options.", "envConfig.")) from None


def _explain(problem: Any) -> str:
    place = ".".join(["envConfig", *map(str, problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return f"{place}: the agent has no such setting. Look it up in docs/grl.md."
    return f"{place} ({problem['input']!r}): {problem['msg']}. Correct it."


def options_of(agent: NamedAgent) -> dict[str, Any]:
    """An agent's settings as options of its world."""
    return {
        "agentType": agent.agent_type,
        "tag": agent.name,
        "agentConfig": json.loads(agent.agent_config.model_dump_json()),
        "envConfig": dict(agent.env_config),
    }
