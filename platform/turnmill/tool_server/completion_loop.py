"""Completions with tool calls: a stop string ends an action, and generation continues after the observation."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnmill.core.errors import ToolError
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.tool_server.observation_format import ObservationFormat
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
        self._format = ObservationFormat(settings, upstream)

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
        prompt, sampling = await self._format.prompt(prompt, sampling)
        for turn in range(self._settings.max_turns + 1):
            # The last turn is for an answer: no more actions are allowed.
            last = turn == self._settings.max_turns
            action_stops = () if last else self._settings.action_stop_tokens
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
            end_of_action = None if last else self._end_of_action(generation, turn, stops=stop)
            if end_of_action is None:
                break
            result = await self._call(trajectory_id, generation.text + end_of_action)
            text += end_of_action
            if result.done:
                break
            text += await self._format.after(text, result)
        return Completion(text, finish_reason, prompt_tokens or 0, completion_tokens)

    def _end_of_action(self, generation: Generation, turn: int, *, stops: Sequence[str]) -> str | None:
        """Return the text that makes a generation an action; None if it calls no tool.

        One of the request's own `stops` ends the completion, also in a turn that always calls a tool.
        """
        action_stops = self._settings.action_stop_tokens
        action_stop = self._action_stop(generation, action_stops)
        if action_stop is not None or (generation.stop is not None and generation.stop in stops):
            return action_stop
        is_forced = turn < self._settings.min_turns or (self._settings.enable_mtrl and not action_stops)
        return next(iter(action_stops), "") if is_forced else None

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
