"""The player of GRL's agents, whose episodes are the groups of a validation."""

from itertools import groupby

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.player import NEEDS_TOKENS, Player
from turnmill.evaluation.setting import NO_LIMIT, Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.grl_agent import NamedAgent
from turnmill.jobs.job import JobSpec
from turnmill.rollout.grl.loop import GrlLoop


class GrlPlayer(Player):
    """Plays groups of GRL's agents; each attempt at a group starts from its state."""

    def __init__(self, setting: Setting) -> None:
        if setting.policy.folder is None:
            agent = setting.job.spec.grl_agent
            setting = setting.with_agent(agent.model_copy(update={"max_prompt_length": NO_LIMIT}))
        self._loop = setting.loop(GrlLoop)
        self._sampling = setting.sampling

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one episode from the initial state of a group."""
        played = await self._loop.run(self._sampling, index=episode, session_id=sample, global_steps=0, validate=True)
        return played if isinstance(played, EpisodeFailure) else played.summary()

    async def close(self) -> None:
        """Close connections."""
        await self._loop.close()

    @classmethod
    def with_episodes(cls, job: AgentTrainingJob, *, episodes: int | None, seed: int | None) -> AgentTrainingJob:
        """Return the job with a validation of the first groups. Raises SettingsError for more than there are."""
        spec, agent = job.spec, job.spec.grl_agent
        groups = len(agent.validation_groups)
        if episodes is not None and episodes > groups:
            raise SettingsError(
                f"--episodes ({episodes}) must be at most the number of groups in a validation ({groups}), each of "
                "which has a seed. Add `--set agent.validationAgentGroupNum=[N]`."
            )
        if seed is not None:
            agent = agent.model_copy(update={"validation_seed": seed})
        validation = spec.training.validation.model_copy(
            update={"episodes": episodes or groups, "seed": agent.validation_seed}
        )
        training = spec.training.model_copy(update={"validation": validation})
        return job.model_copy(update={"spec": spec.model_copy(update={"agent": agent, "training": training})})

    @classmethod
    def require_playable(cls, job: AgentTrainingJob, *, takes_tokens: bool) -> None:
        """Raise SettingsError for rewards by a trainer, and for responses that an endpoint would have to go on with."""
        if (function := job.spec.grl_agent.validation_reward_function) is not None:
            raise SettingsError(
                f"spec.agent.validationRewardFunction ({function}) takes the batches of a trainer. Use "
                "`turnmill run JOB.yaml --evaluate`, or leave it out: then agents decide."
            )
        begun = [group.agent for group in job.spec.grl_agent.validation_groups if _begins_responses(group.agent)]
        if begun and not takes_tokens:
            raise SettingsError(
                f"spec.agent.agents: prompts of {begun[0].name} end with the beginning of a response, and a chat "
                "endpoint begins another. Set agentConfig.useThinkAnswerToken of each agent to false in the job, or "
                f"{NEEDS_TOKENS}"
            )

    @classmethod
    def environment(cls, spec: JobSpec) -> str:
        """Return the names of the agents, each of which has an environment."""
        return "+".join(dict.fromkeys(group.agent.name for group in spec.grl_agent.validation_groups))

    @classmethod
    def episodes_of(cls, spec: JobSpec) -> dict[str, object]:
        """Return the environment and the number of groups of each agent; prompts and limits may differ."""
        groups = groupby(group.agent for group in spec.grl_agent.validation_groups)
        return {"groups": [[agent.name, agent.agent_type, agent.env_config, len(list(its))] for agent, its in groups]}


def _begins_responses(agent: NamedAgent) -> bool:
    """Return whether an agent's prompts end with `<think>` or `<answer>`."""
    return agent.agent_config.use_think_answer_token
