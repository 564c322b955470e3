"""Agents in GRL's manner: several kinds in one run, in groups that share a seed; its names, parameter by parameter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import Settings, Word
from turnmill.jobs.training import TrainingSettings

MAX_AGENTS = 32
Names = Annotated[tuple[Word, ...], Field(strict=False, max_length=MAX_AGENTS)]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(strict=False, min_length=1, max_length=MAX_AGENTS)
]
Text = Annotated[str, Field(max_length=65_536)]


class AgentConfig(Settings):
    """The prompt of an agent, the limits of its episodes, and the penalty of a mistake."""

    max_turns: int = Field(default=1, ge=1, le=100_000)
    """Turns after which an episode ends."""

    max_actions_all_turns: int = Field(default=1, ge=1, le=1_000_000)
    """Actions after which an episode ends; those that are not allowed are not counted."""

    max_actions_per_turn: int = Field(default=1, ge=1, le=1_000_000)
    """Actions that are taken from one response; further ones are dropped."""

    max_tokens: int = Field(default=100, ge=1, le=1_000_000)
    """Length that the prompt asks responses to keep to; `agent.maxResponseLength` is what they may have."""

    format_penalty: float = Field(default=-0.1, ge=-1000, le=1000)
    """Added to the score once for a turn without an action, or with one that is not allowed."""

    enable_think: bool = True
    """Have a response hold a thought before its answer."""

    use_think_answer_token: bool = True
    """End the prompt with `<think>`, or with `<answer>` where there is no thought."""

    action_separator: Annotated[str, Field(min_length=1, max_length=64)] = "||"
    """Separator between the actions of an answer."""

    system_prompt: Text | None = None
    """The message of the system; left out, the agent's own."""

    prompt: Text | None = None
    """Beginning of the first user message; left out, the agent's own."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of an agent class of your own."""


class NamedAgent(Settings):
    """One kind of agent, with its environment."""

    name: Word
    """What lists and metrics call it."""

    agent_type: Word
    """Name of a registered agent, such as `sokobanAgent`, or `package.module:Class`."""

    agent_config: AgentConfig = AgentConfig()
    """What the agent reads, how long it may act, and what a mistake costs it."""

    env_config: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the agent's environment; each agent documents its own."""


class RewardNormalization(Settings):
    """The comparison of rewards, before the penalties are added."""

    grouping: Literal["state", "inductive", "batch"] = "state"
    """What a reward is compared with: `state` its group, `inductive` all of its kind of agent, `batch` the step."""

    method: Literal["identity", "mean", "mean_std", "asym_clip"] = "identity"
    """`identity` leaves rewards as they are, `mean` takes the mean off, `mean_std` divides by the deviation too,
    `asym_clip` then cuts to -1 and 3."""


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """Episodes from one state: one kind of agent, one seed."""

    number: int
    """Over all kinds of agents, from 0; the seed follows from it."""

    agent: NamedAgent
    size: int


class GrlAgent(BaseAgent):
    """GRL's agents: several kinds in one run, groups that share a seed, answers with several actions."""

    implementation = "turnmill.training.agent_kinds.grl:GrlKind"

    type: Literal["grl"] = "grl"
    """Agent loop: `grl` plays groups of episodes of several kinds of agents."""

    agents: Annotated[tuple[NamedAgent, ...], Field(strict=False, min_length=1, max_length=MAX_AGENTS)]
    """The kinds of agents that there are, each with its environment."""

    train: Names = ()
    """The same as `training`, by the name in GRL's documentation."""

    training: Names = ()
    """Names of the agents that learn; left out, all of `agents`."""

    validation: Names = ()
    """Names of the agents of validations; left out, those that learn."""

    agent_group_num: Counts = (8,)
    """Groups of a step: a number for each agent that learns, or one for all."""

    agent_group_size: Counts = (16,)
    """Episodes of a group, all from the same state: a number for each agent that learns, or one for all."""

    validation_agent_group_num: Counts = (64,)
    """Groups of a validation: a number for each of its agents, or one for all."""

    validation_agent_group_size: Counts = (1,)
    """Episodes of a group in validations: a number for each of its agents, or one for all."""

    validation_seed: int = Field(default=123, ge=0, le=900_000)
    """Seed of the first group of every validation; training never plays these seeds."""

    validation_steps: int = Field(default=1, ge=1, le=1000)
    """Times a validation is played, to be averaged."""

    validation_sampling: Literal["greedy", "training"] = "greedy"
    """How validations sample: `greedy` takes the likeliest token, `training` samples as training does."""

    turns: Literal["synchronous", "asynchronous"] = "synchronous"
    """`synchronous` has all episodes of a worker wait for each other after every turn, `asynchronous` lets each go on
    as soon as its environment has answered."""

    use_turn_scores: bool = False
    """Give each turn its score at its own last token, instead of the sum at the end."""

    reward_normalization: RewardNormalization = RewardNormalization()
    """The comparison of rewards, before the penalties are added."""

    rollout_filter_ratio: float = Field(default=0.25, gt=0, le=1)
    """Share of a step's groups that is learned from; 1 takes all."""

    rollout_filter_type: Literal["std", "std_rev"] = "std"
    """Which groups these are: `std` those whose rewards differ most, `std_rev` least."""

    loss_mask: Literal["assistant", "after_system"] = "assistant"
    """What is learned from: `assistant` the tokens that the policy sampled, `after_system` everything after the message
    of the system, observations too, as GRL does."""

    reformat_responses: bool = False
    """Put responses into the context as GRL does, tokenized anew from thought and actions; what is trained is then
    not what was sampled."""

    max_prompt_length: int = Field(default=4096, ge=16, le=10_000_000)
    """Tokens of a conversation that the policy reads."""

    max_response_length: int = Field(default=400, ge=1, le=10_000_000)
    """Tokens of one response."""

    truncation: Literal["left", "error"] = "left"
    """What a conversation longer than `maxPromptLength` leads to: `left` goes on with its last tokens, in a row of
    their own, `error` ends the episode with stop reason `max_tokens`."""

    num_prompt_threads: int = Field(default=0, ge=0, le=4096)
    """Prompts of a worker that are tokenized at once; 0 sets no limit."""

    num_env_threads: int = Field(default=0, ge=0, le=4096)
    """Environments of a worker that act at once; 0 sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    @property
    def group_size(self) -> int:
        """The trajectories of what verl takes for a task: 1, as each row states the size of its own group."""
        return 1

    @property
    def response_token_limit(self) -> int:
        """The tokens that a response may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> None:
        """Return no limit: all episodes of a step take their turns together."""

    def environment_name(self, environment: EnvironmentSettings) -> str:
        """Return the names of the kinds of agents: each has an environment of its own."""
        return "+".join(agent.name for agent in self.learning_agents)

    def tasks_per_step(self, training: TrainingSettings) -> int:
        """Return the number of groups: each stands for a task."""
        return len(self.training_groups)

    @property
    def learning_agents(self) -> tuple[NamedAgent, ...]:
        """The kinds of agents that learn."""
        return tuple({group.agent.name: group.agent for group in self.training_groups}.values())

    @property
    def training_groups(self) -> tuple[AgentGroup, ...]:
        """The groups of a step."""
        return tuple(self._groups(self._learning_names, self.agent_group_num, self.agent_group_size))

    @property
    def validation_groups(self) -> tuple[AgentGroup, ...]:
        """The groups of a validation, once."""
        names = self.validation or self._learning_names
        return tuple(self._groups(names, self.validation_agent_group_num, self.validation_agent_group_size))

    @property
    def _learning_names(self) -> Names:
        return self.train or self.training or tuple(agent.name for agent in self.agents)

    def _groups(self, names: Names, nums: Counts, sizes: Counts) -> Iterator[AgentGroup]:
        by_name = {agent.name: agent for agent in self.agents}
        number = 0
        for name, num, size in zip(names, for_each(nums, names), for_each(sizes, names), strict=True):
            for _ in range(num):
                yield AgentGroup(number, by_name[name], size)
                number += 1


def for_each(counts: Counts, names: Names) -> Counts:
    """Return one number for each name, of a list that has one for each or one for all."""
    return counts * len(names) if len(counts) == 1 else counts
