"""Episodes of an evaluation, played by the agent loops that training uses."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar

from omegaconf import OmegaConf

from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.evaluation import Attempt
from turnmill.rollout.tool_agent.loop import ToolLoop
from turnmill.rollout.verl_classes import AgentLoopBase, DictConfigWrap
from turnmill.rollout.verl_types import LLMClient, Tokenizer
from turnmill.rollout.verlog.turn_loop import TurnLoop

Loop = TypeVar("Loop", bound=AgentLoopBase)

_NO_LIMIT = 2**31
"""Tokens of a prompt, if tokens are bytes: the endpoint knows its own limit."""


class LoopMaker(Protocol):
    """Creates a loop with the settings of an evaluation."""

    def __call__(self, kind: type[Loop], **more: object) -> Loop:
        """Return a loop of a class, with further arguments of its constructor."""


class Player(Protocol):
    """Plays episodes of one kind of agent."""

    needs_tokens: ClassVar[bool]
    """Whether the endpoint must take tokens: chat messages would not do."""

    @classmethod
    def create(cls, loop: LoopMaker, temperature: float, tool_server_url: str | None) -> Self:
        """Return a player with a loop of its kind."""

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one attempt at an episode."""

    async def close(self) -> None:
        """End processes and connections."""


class VerlogPlayer:
    """Plays episodes in environments."""

    needs_tokens: ClassVar[bool] = False

    def __init__(self, loop: TurnLoop, temperature: float) -> None:
        self._loop = loop
        self._params = _sampling(temperature)

    @classmethod
    def create(cls, loop: LoopMaker, temperature: float, tool_server_url: str | None) -> Self:
        """Return a player with a loop of its kind."""
        return cls(loop(TurnLoop), temperature)

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play an episode; one that fails three times has failed."""
        try:
            row = await self._loop.validate(episode, self._params, 0, sample=sample)
        except RunFailedError as error:
            return EpisodeFailure(f"v{episode}-{sample}", error.cause, str(error), 0, {})
        assert row.episode_summary is not None
        return row.episode_summary

    async def close(self) -> None:
        """End environments that are left."""
        await self._loop.close()


class ToolPlayer:
    """Plays tasks with tools."""

    # A response goes on after a tool's answer, where a chat endpoint would begin another.
    needs_tokens: ClassVar[bool] = True

    def __init__(self, loop: ToolLoop, temperature: float) -> None:
        self._loop = loop
        self._params = _sampling(temperature)

    @classmethod
    def create(cls, loop: LoopMaker, temperature: float, tool_server_url: str | None) -> Self:
        """Return a player with a loop of its kind."""
        return cls(loop(ToolLoop, tool_server_url=tool_server_url), temperature)

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one trajectory of a task."""
        result = await self._loop.run(self._params, index=episode, session_id=sample, global_steps=0, validate=True)
        return result if isinstance(result, EpisodeFailure) else result.summary

    async def close(self) -> None:
        """Release trajectories, and close connections."""
        await self._loop.close()


PLAYERS: Mapping[str, type[Player]] = {"verlog": VerlogPlayer, "tool": ToolPlayer}
"""Players by type of agent."""


def require_playable(job: AgentTrainingJob, *, takes_tokens: bool) -> None:
    """Raise SettingsError for an agent that cannot be evaluated, or not by an endpoint that takes messages."""
    kind = job.spec.agent.type
    if kind not in PLAYERS:
        raise SettingsError(
            f"Agents of type {kind!r} cannot be evaluated without a trainer: {' and '.join(PLAYERS)} can. Use "
            "`turnmill run JOB.yaml --evaluate`."
        )
    if PLAYERS[kind].needs_tokens and not takes_tokens:
        raise SettingsError(
            f"Agents of type {kind!r} go on with their own response after a tool's answer, and a chat endpoint begins "
            "another. Serve the model with vLLM and give its tokenizer's folder with --tokenizer, or give the model's "
            "folder."
        )


def create_player(
    job: AgentTrainingJob,
    run_dir: Path,
    client: LLMClient,
    tokenizer: Tokenizer,
    *,
    model_type: str | None,
    max_prompt_tokens: int | None,
    tool_server_url: str | None,
) -> Player:
    """Return the player of a job's agent, for which `require_playable` holds."""
    temperature = job.spec.training.validation.temperature

    def loop(kind: type[Loop], **more: object) -> Loop:
        data = OmegaConf.create({"apply_chat_template_kwargs": {}})
        rollout = {"prompt_length": max_prompt_tokens or _NO_LIMIT}
        return kind(
            trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": data})),
            server_manager=client,
            tokenizer=tokenizer,
            processor=None,
            hf_model_type=model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(data),
            job=job,
            run_dir=run_dir,
            **more,
        )

    return PLAYERS[job.spec.agent.type].create(loop, temperature, tool_server_url)


async def play_all(
    player: Player, *, episodes: int, samples: int, concurrency: int, on_done: Callable[[int, int], None]
) -> list[Attempt]:
    """Play every sample of every episode, some at once; return them in order."""
    attempts: list[Attempt] = []
    turn = asyncio.Semaphore(concurrency)

    async def attempt(episode: int, sample: int) -> None:
        async with turn:
            played = await player.play(episode, sample)
        attempts.append(_attempt(episode, sample, played))
        on_done(len(attempts), episodes * samples)

    try:
        async with asyncio.TaskGroup() as group:
            for sample in range(samples):
                for episode in range(episodes):
                    group.create_task(attempt(episode, sample))
    except* SettingsError as errors:
        # Of those that fail in the same way at once, one is enough.
        raise errors.exceptions[0] from None
    return sorted(attempts, key=lambda attempt: (attempt.episode, attempt.sample))


def _attempt(episode: int, sample: int, played: EpisodeSummary | EpisodeFailure) -> Attempt:
    if isinstance(played, EpisodeFailure):
        return Attempt(episode, sample, False, 0.0, played.num_turns, "failed", played.cause)
    return Attempt(episode, sample, played.success, played.reward, played.num_turns, played.stop_reason, None)


def _sampling(temperature: float) -> dict[str, object]:
    return {"temperature": temperature, "top_p": 1.0, "top_k": -1}
