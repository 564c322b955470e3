"""The tasks of a run and of its validations, and what answers to them are worth."""

from collections.abc import Callable
from typing import Protocol

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.rewards import compute_prediction, compute_reward
from turnmill.tasks import Answer, Task, TaskSource, create_source
from turnmill.tasks.reward_model import RewardModel


class TaskEpisode(Protocol):
    """An episode that plays a task."""

    name: str
    task: Task
    validate: bool


class TaskSources:
    """A job's source of tasks, with the seeds of the training and of the validation."""

    def __init__(self, job: AgentTrainingJob, folder: RunFolder) -> None:
        environment, training = job.spec.environment, job.spec.training
        self._spec = job.spec
        self.training: TaskSource = create_source(environment.name, environment.options, seed=training.seed)
        self.validation = create_source(environment.name, environment.options, seed=training.validation.seed)
        if job.spec.reward_model is None:
            if self.training.asks_reward_model:
                raise SettingsError(
                    "spec.rewardModel: missing, and environment.options.reward asks it. Add the model, or give the "
                    "address of a judge as environment.options.judge.url."
                )
        else:
            # One for both, since it limits how much is asked for at a time.
            self.training.reward_model = self.validation.reward_model = RewardModel(folder.reward_model)

    def task(self, episode: EpisodeId) -> Task:
        """Return the task of an episode."""
        if episode.validate:
            return self.validation.validation(episode.task)
        return self.training.training(self._spec.task_number(episode.step, episode.task))

    def keep(self, fits: Callable[[Task], bool]) -> None:
        """Drop the tasks that do not fit. Raises SettingsError if none is left, or if a source has no list of them."""
        for source in (self.training, self.validation):
            source.keep(fits)

    async def reward(self, answer: Answer, episode: TaskEpisode) -> float:
        """Return the reward of an answer. Raises RewardError with the episode's name."""
        source = self.validation if episode.validate else self.training
        return await compute_reward(answer, episode.task, source, episode_name=episode.name)

    def has_votes(self, episode: TaskEpisode) -> bool:
        """Return whether answers are counted as votes: in validations with several samples of each task."""
        return episode.validate and self._spec.training.validation.samples > 1

    async def prediction(self, answer: Answer, episode: TaskEpisode) -> str | None:
        """Return what an answer to a validation's task says. Raises RewardError with the episode's name."""
        return await compute_prediction(answer, episode.task, self.validation, episode_name=episode.name)
