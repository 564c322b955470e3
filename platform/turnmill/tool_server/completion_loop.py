"""Completions with tool calls: a stop string ends an action, and generation continues after the observation."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnmill.core.errors import ToolError
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import FINISH
from turnmill.tool_server.upstream import Generation, Messages, Upstream, UpstreamRefusedError


@dataclass(frozen=True, slots=True)
class Completion:
    """Text of a model and its tools."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class CompletionLoop:
    """Alternates between the model server and tool calls until a completion ends."""

    def __init__(self, settings: ServerSettings, executor: CallExecutor, upstream: Upstream) -> None:
        self._settings = settings
        self._executor = executor
        self._upstream = upstream

    async def complete(
        self, prompt: str | Messages, sampling: Mapping[str, object], stop: Sequence[str] = ()
    ) -> Completion:
        """Generate one completion; strings in `stop` end it and are removed from it, unless they also end an action."""
        trajectory_id = uuid.uuid4().hex
        try:
            return await self._complete(trajectory_id, prompt, sampling, stop)
        finally:
            await self._executor.execute([Action(trajectory_id, "", {FINISH: True})])

    async def _complete(
        self, trajectory_id: str, prompt: str | Messages, sampling: Mapping[str, object], stop: Sequence[str]
    ) -> Completion:
        text, prompt_tokens, completion_tokens, finish_reason = "", None, 0, "stop"
        for turn in range(self._settings.max_turns + 1):
            # The last turn is for an answer: no more actions are allowed.
            action_stops = self._settings.action_stop_tokens if turn < self._settings.max_turns else ()
            stops = list(dict.fromkeys([*action_stops, *stop]))
            try:
                generation = await self._upstream.generate(prompt, text, {**sampling, "stop": stops or None})
            except UpstreamRefusedError:
                if not text:
                    raise
                # It accepted the prompt before: the text has grown beyond its context.
                finish_reason = "length"
                break
            prompt_tokens = generation.prompt_tokens if prompt_tokens is None else prompt_tokens
            completion_tokens = generation.prompt_tokens - prompt_tokens + generation.completion_tokens
            text, finish_reason = text + generation.text, generation.finish_reason
            action_stop = self._action_stop(generation, action_stops)
            if action_stop is None:
                break
            result = await self._call(trajectory_id, generation.text + action_stop)
            text += action_stop
            if result.done:
                break
            text += self._observation(result)
        return Completion(text, finish_reason, prompt_tokens or 0, completion_tokens)

    def _action_stop(self, generation: Generation, action_stops: Sequence[str]) -> str | None:
        if generation.finish_reason != "stop":
            return None
        if generation.reports_stop:
            return generation.stop if generation.stop in action_stops else None
        # The server does not report it: find the stop string that turns the text into an action.
        if self._executor.tools.match(generation.text) is not None:
            return None
        return next((stop for stop in action_stops if self._executor.tools.match(generation.text + stop)), None)

    async def _call(self, trajectory_id: str, action: str) -> CallResult:
        [result] = await self._executor.execute([Action(trajectory_id, action)])
        if isinstance(result, ToolError):
            raise result
        return result

    def _observation(self, result: CallResult) -> str:
        observation = result.observation
        text = observation if isinstance(observation, str) else str(observation.get("obs", ""))
        max_characters = self._settings.max_obs_characters
        return text[-max_characters:] if self._settings.truncate_obs_side == "left" else text[:max_characters]
