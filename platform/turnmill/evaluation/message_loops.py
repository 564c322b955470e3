"""What lets agent loops play by an endpoint that takes messages, where a token of theirs is a byte."""

import math
from collections.abc import Sequence
from dataclasses import replace

from turnmill.core.trajectory import TrajectoryOutcome
from turnmill.evaluation.setting import Setting
from turnmill.jobs.base_agent import BaseAgent
from turnmill.rollout.token_output import TokenOutput
from turnmill.rollout.tool_agent.episode import TOOL_SIGNALED_DONE, Episode
from turnmill.rollout.tool_agent.loop import ToolLoop
from turnmill.rollout.tool_agent.rows import EpisodeResult
from turnmill.rollout.verl_types import LLMClient, SamplingParams

BYTES_PER_TOKEN = 4
"""Bytes that count as a token where a loop limits what it cannot tokenize."""

TRUNCATED = TrajectoryOutcome("max_tokens", "finish_reason_length")


def for_messages(setting: Setting, agent: BaseAgent) -> Setting:
    """Return a setting with another agent, whose loop counts bytes and asks the endpoint for tokens."""
    policy = replace(setting.policy, client=ByteCountingClient(setting.policy.client))
    return replace(setting.with_agent(agent), policy=policy)


def in_bytes(agent: BaseAgent, *fields: str) -> dict[str, int]:
    """Return the limits of an agent in bytes; those that are left out stay so."""
    limits = {name: getattr(agent, name) for name in fields}
    return {name: limit * BYTES_PER_TOKEN for name, limit in limits.items() if limit is not None}


class ByteCountingClient:
    """A client for loops whose limits are in bytes."""

    def __init__(self, client: LLMClient) -> None:
        self._client = client

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: SamplingParams, **media: object
    ) -> TokenOutput:
        """Return a response. Raises InferenceError, or SettingsError for a request that is refused."""
        room = sampling_params.get("max_tokens")
        assert isinstance(room, int)
        params = {**sampling_params, "max_tokens": math.ceil(room / BYTES_PER_TOKEN)}
        return await self._client.generate(request_id, prompt_ids=prompt_ids, sampling_params=params, **media)


class MessageToolLoop(ToolLoop):
    """Plays tasks with tools whose answers are messages."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._truncated: set[str] = set()
        """Trajectories whose last response was cut off, of which the endpoint tells and its bytes do not."""

    async def generate(
        self,
        episode: Episode,
        turn: int,
        prompt_ids: list[int],
        sampling_params: SamplingParams,
        *,
        max_tokens: int,
        stops: bool,
        images: Sequence[object] = (),
    ) -> TokenOutput:
        """Generate the policy's next response in an episode. Raises InferenceError."""
        self._truncated.discard(episode.name)
        output = await super().generate(
            episode, turn, prompt_ids, sampling_params, max_tokens=max_tokens, stops=stops, images=images
        )
        if output.stop_reason == "length":
            self._truncated.add(episode.name)
        return output

    async def _play(self, episode: Episode) -> EpisodeResult:
        try:
            result = await super()._play(episode)
            if episode.name not in self._truncated or result.summary.stop_reason != "completed":
                return result
            if result.detail == TOOL_SIGNALED_DONE.detail:
                return result
        finally:
            self._truncated.discard(episode.name)
        summary = replace(result.summary, stop_reason=TRUNCATED.stop_reason)
        return replace(result, summary=summary, detail=TRUNCATED.detail)
