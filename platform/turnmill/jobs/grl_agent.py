"""Settings of GRL's agents: several kinds of agents in one run, in groups that share a seed, by GRL's names."""

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
    """An agent's prompt, the limits of its episodes, and its penalty for invalid responses."""

    max_turns: int = Field(default=1, ge=1, le=100_000)
    """Turns after which an episode ends."""

    max_actions_all_turns: int = Field(default=1, ge=1, le=1_000_000)
    """Executed actions after which an episode ends; actions that are not allowed do not count."""

    max_actions_per_turn: int = Field(default=1, ge=1, le=1_000_000)
    """Actions executed from one response; further ones are dropped."""

    max_tokens: int = Field(default=100, ge=1, le=1_000_000)
    """Tokens per response that the prompt asks for; `agent.maxResponseLength` is the hard limit."""

    format_penalty: float = Field(default=-0.1, ge=-1000, le=1000)
    """Added once to the score of a turn without an action, or with an action that is not allowed."""

    enable_think: bool = True
    """Ask for a thought before the answer of each response."""

    use_think_answer_token: bool = True
    """End the prompt with `<think>`, or with `<answer>` if `enableThink` is off."""

    action_separator: Annotated[str, Field(min_length=1, max_length=64)] = "||"
    """Separator between the actions of an answer."""

    system_prompt: Text | None = None
    """System message; left out, the agent class's own."""

    prompt: Text | None = None
    """Beginning of the first user message; left out, the agent class's own."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of an agent class of your own, which the class reads."""


class NamedAgent(Settings):
    """One kind of agent with its environment."""

    name: Word
    """Name of the agent in `training`, `validation` and metrics."""

    agent_type: Word
    """Name of a registered agent, such as `sokobanAgent`, or `package.module:Class`."""

    agent_config: AgentConfig = AgentConfig()
    """The agent's prompt, limits and penalty."""

    env_config: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the agent's environment; each agent documents its own."""


class RewardNormalization(Settings):
    """Normalization of rewards, before penalties are added."""

    grouping: Literal["state", "inductive", "batch"] = "state"
    """Rewards that are normalized together: `state` those of a group, `inductive` those of a kind of agent, `batch`
    those of the step."""

    method: Literal["identity", "mean", "mean_std", "asym_clip"] = "identity"
    """`identity` leaves rewards unchanged, `mean` subtracts the mean, `mean_std` also divides by the standard
    deviation, `asym_clip` then clips to the range from -1 to 3."""


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """A group of episodes from one initial state: one kind of agent, one seed."""

    number: int
    """Number over all kinds of agents, from 0; the seed is derived from it."""

    agent: NamedAgent
    size: int


class GrlAgent(BaseAgent):
    """GRL's agents: several kinds in one run, groups that share a seed, responses with several actions."""

    implementation = "turnmill.training.agent_kinds.grl:GrlKind"

    type: Literal["grl"] = "grl"
    """Agent loop: `grl` plays groups of episodes of several kinds of agents."""

    agents: Annotated[tuple[NamedAgent, ...], Field(strict=False, min_length=1, max_length=MAX_AGENTS)]
    """All kinds of agents, each with its environment."""

    train: Names = ()
    """Another name for `training`, as in GRL's documentation."""

    training: Names = ()
    """Names of the agents that are trained; left out, all of `agents`."""

    validation: Names = ()
    """Names of the agents in validations; left out, those that are trained."""

    agent_group_num: Counts = (8,)
    """Groups per step: a number for each trained agent, or one for all."""

    agent_group_size: Counts = (16,)
    """Episodes per group, all from the same initial state: a number for each trained agent, or one for all."""

    validation_agent_group_num: Counts = (64,)
    """Groups per validation: a number for each of its agents, or one for all."""

    validation_agent_group_size: Counts = (1,)
    """Episodes per group in validations: a number for each of its agents, or one for all."""

    validation_seed: int = Field(default=123, ge=0, le=900_000)
    """Seed of the first group of every validation; training never uses the seeds of validations."""

    validation_steps: int = Field(default=1, ge=1, le=1000)
    """Repetitions of each validation; its metrics are averaged over them."""

    validation_sampling: Literal["greedy", "training"] = "greedy"
    """Sampling in validations: `greedy` takes the most likely token, `training` samples as training does."""

    turns: Literal["synchronous", "asynchronous"] = "synchronous"
    """`synchronous` makes all episodes of a worker wait for each other after every turn, `asynchronous` continues each
    as soon as its environment has answered."""

    use_turn_scores: bool = False
    """Place each turn's score at the last token of its response; off, their sum is placed at the last token of the
    episode."""

    reward_normalization: RewardNormalization = RewardNormalization()
    """Normalization of rewards, before penalties are added."""

    reward_function: Word | None = None
    """`package.module:name` of a function that decides the rewards of the groups that the filter selects: it takes
    their batch, as `reward_fn` of GRL's trainer does, and returns a reward for each token; left out, agents decide."""

    validation_reward_function: Word | None = None
    """`package.module:name` of a function that gives the scores of validations, as `val_reward_fn` does."""

    rollout_filter_ratio: float = Field(default=0.25, gt=0, le=1)
    """Share of a step's groups to train on; 1 takes all."""

    rollout_filter_type: Literal["std", "std_rev"] = "std"
    """Groups to train on: `std` those with the largest standard deviation of rewards, `std_rev` those with the
    smallest."""

    loss_mask: Literal["assistant", "after_system"] = "assistant"
    """Tokens to train on: `assistant` those that the policy sampled, `after_system` all after the system message,
    including observations, as GRL does."""

    reformat_responses: bool = False
    """Add responses to the context in GRL's form, tokenized again from thought and actions; the trained tokens may then
    differ from the sampled ones."""

    max_prompt_length: int = Field(default=4096, ge=16, le=10_000_000)
    """Tokens of a conversation that the policy reads."""

    max_response_length: int = Field(default=400, ge=1, le=10_000_000)
    """Tokens of one response."""

    truncation: Literal["left", "error"] = "left"
    """Effect of a conversation longer than `maxPromptLength`: `left` continues with its last tokens in a new training
    row, `error` ends the episode with stop reason `max_tokens`."""

    num_prompt_threads: int = Field(default=0, ge=0, le=4096)
    """Prompts that a worker tokenizes at once; 0 sets no limit."""

    num_env_threads: int = Field(default=0, ge=0, le=4096)
    """Environments that a worker runs at once; 0 sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    @property
    def group_size(self) -> int:
        """Rows that verl makes of a task: 1, as each row states the size of its own group."""
        return 1

    @property
    def response_token_limit(self) -> int:
        """The tokens that a response may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> None:
        """Return no limit: all episodes of a step are played together."""

    def environment_name(self, environment: EnvironmentSettings) -> str:
        """Return the names of the kinds of agents: each has an environment of its own."""
        return "+".join(agent.name for agent in self.learning_agents)

    def tasks_per_step(self, training: TrainingSettings) -> int:
        """Return the number of groups: each stands for a task."""
        return len(self.training_groups)

    @property
    def learning_agents(self) -> tuple[NamedAgent, ...]:
        """The kinds of agents that are trained."""
        return tuple({group.agent.name: group.agent for group in self.training_groups}.values())

    @property
    def training_groups(self) -> tuple[AgentGroup, ...]:
        """The groups of a step."""
        return tuple(self._groups(self._learning_names, self.agent_group_num, self.agent_group_size))

    @property
    def validation_groups(self) -> tuple[AgentGroup, ...]:
        """The groups of one repetition of a validation."""
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
    """Return one number for each name, from a list that has one for each or one for all."""
    return counts * len(names) if len(counts) == 1 else counts
