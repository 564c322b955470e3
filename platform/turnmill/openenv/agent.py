"""An agent of type `harness` whose functions are the tools of an OpenEnv environment: `turnmill.openenv:play`.

It is imported once per trajectory, so it imports little.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.openenv.session import Json, JsonObject, OpenEnvSession, Reply, text_of

Task = Mapping[str, Json]

MESSAGE_TIMEOUT_SECONDS = 60.0
"""Time that a server may take to answer, if the task gives none."""

PAUSES_SECONDS = (1.0, 4.0)
"""Times before a completion that the gateway could not give for now is asked for again."""

CONVERSATION_FULL, UNREACHABLE = "context_length_exceeded", "transport_error"


def play(task: Task) -> dict[str, float]:
    """Play an episode: the policy calls tools until it answers without a call, or the environment or a limit ends it.

    Whatever fails the server raises EnvironmentFailedError, so that the trajectory fails and has no reward.
    """
    info = cast(dict[str, JsonObject], task["info"]).get("openenv")
    if info is None:
        raise SettingsError(
            "environment.name: its tasks name no server of OpenEnv. Take turnmill.openenv.tasks:OpenEnvTasks, or rows "
            'with extra_info: {"openenv": {"url": ...}}.'
        )
    timeout_seconds = cast(float, info.get("message_timeout_seconds", MESSAGE_TIMEOUT_SECONDS))
    with closing(OpenEnvSession(str(info["url"]), timeout_seconds)) as session:
        return {"reward": _Episode(session, info).play(task)}


class _Episode:
    """Messages and rewards of an episode."""

    def __init__(self, session: OpenEnvSession, info: JsonObject) -> None:
        self.session = session
        start = session.reset(cast(JsonObject, info.get("reset", {})))
        self.functions = [_function(tool) for tool in session.tools()]
        self.opening = text_of(start.observation, cast("str | None", info.get("observation_field")))
        self.sums_rewards = info.get("reward") == "total"
        self.reward = start.reward or 0.0
        self.done = start.done

    def play(self, task: Task) -> float:
        """Return the reward: that of the last step that had one, or the sum of all."""
        messages = _with_opening(cast(list[JsonObject], task["messages"]), self.opening)
        for _ in range(cast(int, task["maxTurns"])):
            answer = None if self.done else complete(messages, self.functions)
            calls = cast(list[JsonObject], answer.get("tool_calls") or []) if answer else []
            if answer is None or not calls:
                break
            messages += [answer, *self._results(calls)]
        return self.reward

    def _results(self, calls: Sequence[JsonObject]) -> list[JsonObject]:
        results: list[JsonObject] = []
        for call in calls:
            if self.done:
                break
            text = self._call(cast(JsonObject, call["function"]))
            results.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        return results

    def _call(self, function: JsonObject) -> str:
        """Return the result of a call, as a text; a call that is none is not sent."""
        try:
            arguments = json.loads(str(function["arguments"]))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return "Error: the arguments are no JSON object."
        reply = self.session.step({"type": "call_tool", "tool_name": function["name"], "arguments": arguments})
        if reply.reward is not None:
            self.reward = reply.reward + (self.reward if self.sums_rewards else 0.0)
        self.done = reply.done
        return _result_text(reply)


def complete(messages: Sequence[JsonObject], functions: Sequence[JsonObject]) -> JsonObject | None:
    """Return the policy's answer, or None if the conversation has become too long for one."""
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": functions}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    pauses = list(PAUSES_SECONDS)
    while True:
        try:
            # `agent.timeoutSeconds` ends the program, however long an answer takes.
            with urlopen(Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)) as response:
                return cast(JsonObject, json.load(response)["choices"][0]["message"])
        except HTTPError as error:
            if error.code < 500 and _code(error) == CONVERSATION_FULL:
                return None
            if error.code < 500 or not pauses:
                raise
            time.sleep(pauses.pop(0))


def _code(error: HTTPError) -> object:
    try:
        return json.load(error)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return None


def _function(tool: JsonObject) -> JsonObject:
    schema = tool.get("inputSchema") or tool.get("input_schema") or {"type": "object", "properties": {}}
    description = tool.get("description") or ""
    return {"type": "function", "function": {"name": tool["name"], "description": description, "parameters": schema}}


def _with_opening(messages: Sequence[JsonObject], opening: str) -> list[JsonObject]:
    """Return the task's messages with the first observation at the end of the last one."""
    *before, last = messages
    return [*before, {**last, "content": f"{last['content']}\n\n{opening}".strip()}]


def _result_text(reply: Reply) -> str:
    """Return what a tool has returned, or the whole observation of an environment with replies of its own.

    Raises EnvironmentFailedError if the environment could not reach the tool, which says nothing of the policy.
    """
    observation = reply.observation
    if not isinstance(observation, dict) or "tool_name" not in observation:
        return text_of(observation, None)
    if isinstance(error := observation.get("error"), dict):
        if error.get("error_type") == UNREACHABLE:
            raise EnvironmentFailedError(f"The environment did not reach a tool: {error.get('message')}.")
        return f"Error: {error.get('message')}"
    result = observation.get("result")
    if isinstance(result, dict) and "data" in result:
        # Without a schema of the result, MCP has its text alone.
        result = result["data"] if result["data"] is not None else _content_text(result)
    return text_of(result, None)


def _content_text(result: JsonObject) -> str:
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
