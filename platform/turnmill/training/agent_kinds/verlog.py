"""The agent kind `verlog`: episodes in environments, with each turn as a row of its own."""

from collections.abc import Iterator, Mapping

from turnmill.core.errors import SettingsError
from turnmill.environments.registry import allowed_actions
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.problems import Problem, problems_of
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.jobs.verlog_agent import PROMPTS, VerlogAgent
from turnmill.rollout.verlog.prompts import load_function, question
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind, token_limits

TURN_TRAINERS: Mapping[str, str] = {
    "sync": "turnmill.training.trainers.turn:TurnTrainerSync",
    "colocate_async": "turnmill.training.trainers.turn:TurnTrainerColocateAsync",
    "separate_async": "turnmill.training.trainers.turn:TurnTrainerSeparateAsync",
}


class VerlogKind(AgentKind[VerlogAgent]):
    """Steps of a fixed number of turns with `turn_ppo`; whole episodes with every other algorithm."""

    warm_start_recipe = "turnmill.training.warm_start.recipes:EnvironmentRecipe"

    def manager_path(self, job: AgentTrainingJob) -> str:
        """Return the manager class for turns or for whole episodes."""
        if job.spec.learns_from_turns:
            return "turnmill.rollout.verlog.turn_loop_worker:TurnLoopManager"
        return "turnmill.rollout.verlog.episode_loop_worker:EpisodeLoopManager"

    def trainer_paths(self, job: AgentTrainingJob) -> Mapping[str, str]:
        """Return the trainer classes for turns or for whole episodes."""
        return TURN_TRAINERS if job.spec.learns_from_turns else self.trainers

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings that turns or whole episodes need, by verl's dotted names."""
        if not job.spec.learns_from_turns:
            return super().verl_settings(job)
        rollout = "actor_rollout_ref.rollout"
        return {
            "data.custom_cls.name": "EnvironmentSlots",
            "data.train_batch_size": job.spec.environment.count,
            f"{rollout}.n": 1,
            **token_limits(prompt=self.max_prompt_tokens, response=self.max_response_tokens),
            f"{rollout}.calculate_log_probs": True,
            f"{rollout}.agent.agent_loop_manager_class": self.manager_path(job).replace(":", "."),
        }

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a turn's prompt."""
        return self.agent.max_prompt_tokens

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the environment and the prompt."""
        yield from checks.environment_problems(values)
        prompt = values["spec.agent.prompt"]
        try:
            if ":" in prompt:
                load_function(prompt)
            elif prompt == "cot_actions":
                allowed_actions(values["spec.environment.name"])
            elif prompt not in PROMPTS:
                question(prompt)
        except SettingsError as error:
            yield from problems_of(error)

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the environment has no expert."""
        yield from checks.expert_problems(values)

    def describe_step(self, job: AgentTrainingJob) -> str:
        """Return the number of turns or tasks of a step."""
        if job.spec.learns_from_turns:
            return f"{job.spec.turns_per_step} turns in {job.spec.environment.count} environments"
        return super().describe_step(job)
