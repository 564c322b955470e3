"""Base class of the players of an evaluation: each plays the episodes of one type of agent."""

from abc import ABC, abstractmethod
from typing import ClassVar

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.setting import Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.job import JobSpec

NEEDS_TOKENS = "serve the model with vLLM and give its tokenizer's folder with --tokenizer, or give the model's folder."


class Player(ABC):
    """Plays episodes by the agent loop that training uses."""

    why_tokens: ClassVar[str | None] = None
    """Why the endpoint must take tokens, as the predicate of a sentence; None if chat messages do as well."""

    @abstractmethod
    def __init__(self, setting: Setting) -> None: ...

    @abstractmethod
    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one attempt at an episode."""

    @abstractmethod
    async def close(self) -> None:
        """End processes and connections."""

    @classmethod
    def with_episodes(cls, job: AgentTrainingJob, *, episodes: int | None, seed: int | None) -> AgentTrainingJob:
        """Return the job with the episodes and the seed that the command line names; None for those of the agent."""
        return job

    @classmethod
    def require_playable(cls, job: AgentTrainingJob, *, takes_tokens: bool) -> None:
        """Raise SettingsError for a job that cannot be evaluated, or not by an endpoint that takes messages."""
        if not takes_tokens and cls.why_tokens is not None:
            raise SettingsError(f"Agents of type {job.spec.agent.type!r} {cls.why_tokens}: {NEEDS_TOKENS}")

    @classmethod
    def environment(cls, spec: JobSpec) -> str:
        """Return the environment in a few words."""
        return spec.environment.label

    @classmethod
    def episodes_of(cls, spec: JobSpec) -> dict[str, object]:
        """Return what determines the episodes, besides the type of agent and the seed."""
        environment = spec.environment
        return {"environment": environment.name, "task": environment.task, "options": dict(environment.options)}
