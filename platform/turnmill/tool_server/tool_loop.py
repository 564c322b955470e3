"""One completion with tools in it: the model writes, a stop string ends an action, the tool's answer is written on."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnmill.core.errors import ToolError
from turnmill.tool_server.answers import Answer
from turnmill.tool_server.calls import Action, Calls
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import FINISH
from turnmill.tool_server.upstream import Generation, Messages, Upstream, UpstreamRefusedError


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model and its tools wrote."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class ToolLoop:
    """Writes completions."""

    def __init__(self, settings: ServerSettings, calls: Calls, upstream: Upstream) -> None:
        self._settings = settings
        self._calls = calls
        self._upstream = upstream

    async def complete(
        self, prompt: str | Messages, sampling: Mapping[str, Any], stop: Sequence[str] = ()
    ) -> Completion:
        """Write one; `stop` ends it for good, without the string itself, unless it ends an action as well."""
        trajectory_id = uuid.uuid4().hex
        try:
            return await self._complete(trajectory_id, prompt, sampling, stop)
        finally:
            await self._calls.do([Action(trajectory_id, "", {FINISH: True})])

    async def _complete(
        self, trajectory_id: str, prompt: str | Messages, sampling: Mapping[str, Any], stop: Sequence[str]
    ) -> Completion:
        written, prompt_tokens, completion_tokens, finish_reason = "", None, 0, "stop"
        for turn in range(self._settings.max_turns + 1):
            # The last turn is for an answer: no action can follow.
            action_stops = self._settings.action_stop_tokens if turn < self._settings.max_turns else ()
            stops = list(dict.fromkeys([*action_stops, *stop]))
            try:
                generation = await self._upstream.generate(prompt, written, {**sampling, "stop": stops or None})
            except UpstreamRefusedError:
                if not written:
                    raise
                # It took the same request before: what has grown beyond its context is the text.
                finish_reason = "length"
                break
            prompt_tokens = generation.prompt_tokens if prompt_tokens is None else prompt_tokens
            completion_tokens = generation.prompt_tokens - prompt_tokens + generation.completion_tokens
            written, finish_reason = written + generation.text, generation.finish_reason
            ended_by = self._action_stop(generation, action_stops)
            if ended_by is None:
                break
            answer = await self._call(trajectory_id, generation.text + ended_by)
            written += ended_by
            if answer.done:
                break
            written += self._observation(answer)
        return Completion(written, finish_reason, prompt_tokens or 0, completion_tokens)

    def _action_stop(self, generation: Generation, action_stops: Sequence[str]) -> str | None:
        if generation.finish_reason != "stop":
            return None
        if generation.tells_stop:
            return generation.stop if generation.stop in action_stops else None
        # A server that does not tell has left out the string that makes the text an action.
        if self._calls.tools.match(generation.text) is not None:
            return None
        return next((stop for stop in action_stops if self._calls.tools.match(generation.text + stop)), None)

    async def _call(self, trajectory_id: str, action: str) -> Answer:
        [answer] = await self._calls.do([Action(trajectory_id, action)])
        if isinstance(answer, ToolError):
            raise answer
        return answer

    def _observation(self, answer: Answer) -> str:
        observation = answer.observation
        text = observation if isinstance(observation, str) else str(observation.get("obs", ""))
        most = self._settings.max_obs_characters
        return text[-most:] if self._settings.truncate_obs_side == "left" else text[:most]
