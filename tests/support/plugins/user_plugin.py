"""An agent kind and an algorithm as a user writes them; tests put this folder on PYTHONPATH."""

from typing import Any

from pydantic import Field
from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.settings import Settings
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.tool_agent.worker import ToolLoopWorker
from turnmill.rollout.trajectory_worker import TrajectoryManager
from turnmill.training.advantages.rows import Rows
from turnmill.training.agent_kinds.plugin import PluginKind
from turnmill.training.algorithms.base import TrajectoryAlgorithm


class BaselineOptions(Settings):
    """Options of the algorithm."""

    baseline: float = Field(default=0.0, ge=-1, le=1)
    """Taken from every reward."""


class FixedBaseline(TrajectoryAlgorithm[Any]):
    """REINFORCE with a baseline that the job names."""

    options_model = BaselineOptions
    options: BaselineOptions

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Any, values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each trajectory's reward less the baseline, at each of its tokens."""
        advantages_KL = (rewards_KL.sum(1, keepdim=True) - self.options.baseline).expand_as(rewards_KL)
        return advantages_KL, advantages_KL

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return the baseline, as a metric of every step."""
        return {"user_plugin/baseline": self.options.baseline}


class AnswerOptions(Settings):
    """Options of the agent kind."""

    stop_token: str = Field(default="!", min_length=1, max_length=16)
    """Where a response ends."""


class OneAnswer(PluginKind):
    """Tasks that are answered in one response."""

    manager = "user_plugin:OneAnswerManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:TaskRecipe"
    options_model = AnswerOptions
    options: AnswerOptions


class OneAnswerWorker(ToolLoopWorker):
    """Plays trajectories of one response, with the loop of the tool agent and no tools."""

    def loop_arguments(self, config: Any) -> dict[str, Any]:
        """Return the loop's arguments, with the tool agent's settings in place of the job's own."""
        self.job = without_tools(self.job)
        return super().loop_arguments(config)


class OneAnswerManager(TrajectoryManager):
    """Spreads the tasks of a step over the workers."""

    worker_class = OneAnswerWorker


def without_tools(job: AgentTrainingJob) -> AgentTrainingJob:
    """Return the job of a tool agent that calls no tools."""
    agent: Any = job.spec.agent
    settings = ToolAgent(
        enable_agent=False,
        group_size=agent.group_size,
        max_prompt_length=agent.max_prompt_length,
        max_response_length=agent.max_response_length,
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"agent": settings})})
