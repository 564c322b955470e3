"""The players of an evaluation, by type of agent."""

from collections.abc import Mapping
from typing import ClassVar

from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.grl_player import GrlPlayer
from turnmill.evaluation.multi_turn_player import MultiTurnPlayer
from turnmill.evaluation.player import Player
from turnmill.evaluation.setting import Setting
from turnmill.evaluation.tool_player import ToolPlayer
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.verlog.turn_loop import TurnLoop


class VerlogPlayer(Player):
    """Plays episodes in environments."""

    def __init__(self, setting: Setting) -> None:
        self._loop = setting.loop(TurnLoop)
        self._sampling = setting.sampling

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play an episode; one that fails three times has failed."""
        try:
            row = await self._loop.validate(episode, self._sampling, 0, sample=sample)
        except RunFailedError as error:
            return EpisodeFailure(f"v{episode}-{sample}", error.cause, str(error), 0, {})
        assert row.episode_summary is not None
        return row.episode_summary

    async def close(self) -> None:
        """End environments that are left."""
        await self._loop.close()


class HarnessPlayer(Player):
    """Lets programs play tasks, behind a gateway."""

    why_tokens: ClassVar[str | None] = "ask a gateway, which works with tokens"

    def __init__(self, setting: Setting) -> None:
        policy = setting.policy
        self._loop = HarnessLoop(
            server_manager=policy.client, tokenizer=policy.tokenizer, job=setting.job, run_dir=setting.run_dir
        )
        # A program may ask for the log-probs of its answers.
        self._sampling = {**setting.sampling, "logprobs": True}

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Let a program play one trajectory of a task."""
        result = await self._loop.run(self._sampling, index=episode, session_id=sample, global_steps=0, validate=True)
        return result if isinstance(result, EpisodeFailure) else result.summary

    async def close(self) -> None:
        """Close the gateway."""
        await self._loop.close()


PLAYERS: Mapping[str, type[Player]] = {
    "verlog": VerlogPlayer,
    "tool": ToolPlayer,
    "multi_turn": MultiTurnPlayer,
    "grl": GrlPlayer,
    "harness": HarnessPlayer,
}
"""Players by type of agent."""


def player_class(job: AgentTrainingJob) -> type[Player]:
    """Return the class that plays a job's agent. Raises SettingsError if there is none."""
    kind = job.spec.agent.type
    if kind not in PLAYERS:
        raise SettingsError(
            f"Agents of type {kind!r} cannot be evaluated without a trainer: {', '.join(PLAYERS)} can. Use "
            "`turnmill run JOB.yaml --evaluate`."
        )
    return PLAYERS[kind]
