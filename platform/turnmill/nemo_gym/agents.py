"""NeMo Gym's agents, by its own names: how a row is played with a resources server, and what gives its reward."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from turnmill.core.errors import EnvironmentFailedError, HarnessError
from turnmill.nemo_gym.http import Json
from turnmill.nemo_gym.policy import Policy
from turnmill.nemo_gym.resources_server import ResourcesServer

GYMNASIUM_STEPS = 10
"""NeMo Gym's own limit of `gymnasium_agent`."""

TOKENS = ("input_tokens", "output_tokens", "total_tokens")


@dataclass
class Conversation:
    """The responses of the policy to a row, and what follows each of them."""

    params: Json
    """The row's `responses_create_params`."""

    items: list[Json] = field(default_factory=list)
    """What has been added to the row's input, by the policy and the resources server."""

    last: Json = field(default_factory=dict)
    """The last response."""

    usage: Json | None = None
    """Tokens of all responses."""

    def respond(self, policy: Policy) -> list[Json]:
        """Let the policy continue; return the items of its response."""
        response = policy.respond(self.params, [*_items(self.params.get("input")), *self.items])
        if response is None:
            response = self._too_long()
        self.last = response
        self.usage = _total(self.usage, response.get("usage"))
        items = _items(response.get("output"))
        self.items += items
        return items

    def response(self) -> Json:
        """Return all responses as one, in the form of the last."""
        return {**self.last, "output": self.items, "usage": self.usage}

    def _too_long(self) -> Json:
        """Return an empty response that ends the conversation, as NeMo Gym's server of vLLM models has it."""
        if not self.last:
            raise HarnessError("The prompt of the row is too long. Raise agent.maxPromptLength, or leave the row out.")
        part = {"type": "output_text", "text": "", "annotations": []}
        message = {"type": "message", "id": "msg_too_long", "role": "assistant", "status": "completed"}
        incomplete = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return {**self.last, **incomplete, "output": [{**message, "content": [part]}], "usage": None}


class Rollout:
    """One row, the session of its resources server, and the policy."""

    def __init__(self, task: Json) -> None:
        """Take the task as a program of a harness gets it, whose `info` is that of `rows.Rows`."""
        info = _object(task.get("info"), "the task's info")
        self.row = _object(info.get("row"), "the task's row")
        self.server = ResourcesServer(str(info["url"]), timeout_seconds=float(str(info["timeoutSeconds"])))
        self.policy = Policy()
        params = _object(self.row.get("responses_create_params"), "responses_create_params")
        self.conversation = Conversation({**params, "input": _items(params.get("input"))})
        self._max_turns = int(str(task["maxTurns"]))
        self._max_steps = int(str(info["maxSteps"])) if info.get("maxSteps") is not None else None

    def num_steps(self, default: int | None = None) -> int:
        """Return how often the policy is asked at most; `default` counts if the job has no `maxSteps`."""
        return min(self._max_turns, self._max_steps or default or self._max_turns)


def simple_agent(task: Json) -> Json:
    """Play a row with tools: the policy calls them until it answers without a call; the server verifies the whole."""
    rollout = Rollout(task)
    server, conversation = rollout.server, rollout.conversation
    server.ask("/seed_session", rollout.row)
    for _ in range(rollout.num_steps()):
        items = conversation.respond(rollout.policy)
        calls = [item for item in items if item.get("type") == "function_call"]
        has_answer = any(item.get("type") == "message" and item.get("role") == "assistant" for item in items)
        if conversation.last.get("incomplete_details") or (has_answer and not calls):
            break
        for call in calls:
            conversation.items.append(_output(call.get("call_id"), _called(server, call)))
    return _result(rollout, server.ask("/verify", {**rollout.row, "response": conversation.response()}))


def gymnasium_agent(task: Json) -> Json:
    """Play a row step by step: the server answers each response with an observation and a part of the reward."""
    rollout = Rollout(task)
    server, conversation = rollout.server, rollout.conversation
    given = conversation.params["input"]
    begin = server.ask("/reset", rollout.row)
    conversation.params["input"] = [*_items(given), *_observation(begin)]
    reward, step = 0.0, Json()
    for _ in range(rollout.num_steps(GYMNASIUM_STEPS)):
        conversation.respond(rollout.policy)
        step = server.ask("/step", {**rollout.row, "response": conversation.last})
        reward += _reward(step)
        if step.get("terminated") or step.get("truncated"):
            break
        conversation.items += [*_tool_outputs(step), *_observation(step)]
    return _result(rollout, {**step, "reward": reward})


def _called(server: ResourcesServer, call: Json) -> str:
    """Return the output of a call of a tool."""
    try:
        arguments = json.loads(str(call.get("arguments")))
    except ValueError as error:
        return json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
    return server.call(str(call.get("name")), arguments)


def _output(call_id: object, text: object) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def _observation(reply: Json) -> Iterator[Json]:
    if reply.get("observation"):
        yield {"type": "message", "role": "user", "content": reply["observation"]}


def _tool_outputs(step: Json) -> Iterator[Json]:
    info = step.get("info")
    for output in _items(info.get("tool_outputs", []) if isinstance(info, dict) else []):
        yield _output(output["call_id"], output["output"])


def _result(rollout: Rollout, verified: Json) -> Json:
    """Return the reward, and as metrics the numbers that the server has added to the row."""
    added = {name: value for name, value in verified.items() if name != "reward" and name not in rollout.row}
    metrics = {name: float(value) for name, value in added.items() if isinstance(value, (int, float))}
    return {"reward": _reward(verified), "metrics": metrics}


def _reward(reply: Json) -> float:
    reward = reply.get("reward")
    if not isinstance(reward, (int, float)):
        raise EnvironmentFailedError(f"The resources server gave no number as reward but {reward!r}.")
    return float(reward)


def _total(usage: Json | None, further: object) -> Json | None:
    """Return the sum of two numbers of tokens."""
    if not isinstance(further, dict) or usage is None:
        return usage if not isinstance(further, dict) else dict(further)
    sums = {name: int(str(usage[name])) + int(str(further[name])) for name in TOKENS}
    return {
        **usage, **sums, "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def _items(value: object) -> list[Json]:
    """Return a conversation as items; a text is a message of the user."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise HarnessError(f"A text or a list of objects was expected, not {str(value)[:100]!r}.")
    return value


def _object(value: object, name: str) -> Json:
    if not isinstance(value, dict):
        raise HarnessError(f"{name} is no object but {value!r}. Take the tasks from turnmill.nemo_gym.rows:Rows.")
    return value
