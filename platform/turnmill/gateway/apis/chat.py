"""OpenAI's Chat Completions."""

import time
from collections.abc import Iterator, Sequence

from pydantic import Field

from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.apis.base import (
    DONE,
    MAX_ANSWERS,
    Api,
    Body,
    chat_tools,
    event,
    num_tokens,
    openai_error,
    openai_error_event,
    stop_strings,
    structured_output,
)
from turnmill.gateway.bodies import RequestBody
from turnmill.gateway.messages import JsonObject, Message, normalized
from turnmill.gateway.parsing import arguments_text
from turnmill.gateway.rendering import ChatRenderer


class ChatBody(Body):
    """A conversation to continue."""

    messages: list[JsonObject] = Field(min_length=1)
    tools: list[JsonObject] | None = None
    tool_choice: object = None
    n: int | None = Field(default=None, ge=1, le=MAX_ANSWERS)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    response_format: JsonObject | None = None
    stream_options: JsonObject | None = None


class ChatCall:
    """One call of Chat Completions."""

    def __init__(self, request: RequestBody, renderer: ChatRenderer) -> None:
        body = ChatBody.read(request, CHAT.conversation)
        self.stream = bool(body.stream)
        self.request = AnswerRequest(
            digest=request.digest,
            messages=request.messages(lambda message: [normalized(message)]),
            tools=chat_tools(body.tools, body.tool_choice),
            template=body.chat_template_kwargs or {},
            sampling={**body.sampling(), **_format(body.response_format)},
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop=stop_strings(body.stop),
            num_answers=body.n or 1,
        )
        self._body = body
        self._renderer = renderer

    def response(self, answers: Sequence[Answer]) -> JsonObject:
        """Return the body of the response."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", **_message(answer.message)},
                "finish_reason": answer.finish_reason,
                "logprobs": self._log_probs(answer),
                "stop_reason": answer.stop,
            }
            for index, answer in enumerate(answers)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(answers)}

    def events(self, answers: Sequence[Answer]) -> Iterator[str]:
        """Return the events of a streamed response."""
        head = self._head("chat.completion.chunk")
        for index, answer in enumerate(answers):
            for delta in ({"role": "assistant", "content": ""}, *_deltas(answer.message)):
                yield event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
            end = {"index": index, "delta": {}, "finish_reason": answer.finish_reason}
            yield event({**head, "choices": [end | {"logprobs": self._log_probs(answer)}]})
        if (self._body.stream_options or {}).get("include_usage"):
            yield event({**head, "choices": [], "usage": usage(answers)})
        yield DONE

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": f"chatcmpl-{self.request.digest}",
            "object": kind,
            "created": int(time.time()),
            "model": self._body.model,
        }

    def _log_probs(self, answer: Answer) -> JsonObject | None:
        if not self._body.logprobs:
            return None
        content = [
            {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}
            for token, log_prob in zip(answer.token_ids, answer.log_probs, strict=False)
            for text in [self._renderer.text_of([token], special=True)]
        ]
        return {"content": content, "refusal": None}


CHAT = Api("/chat/completions", "messages", ChatCall, openai_error, openai_error_event)


def usage(answers: Sequence[Answer]) -> JsonObject:
    """Return the numbers of tokens, as OpenAI's first APIs have them."""
    prompt, completion = num_tokens(answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _format(response_format: JsonObject | None) -> JsonObject:
    given = response_format or {}
    return structured_output(given, (given.get("json_schema") or {}).get("schema"))


def _message(message: Message) -> dict[str, object]:
    result: dict[str, object] = {"content": message["content"] or (None if message.get("tool_calls") else "")}
    if reasoning := message.get("reasoning_content"):
        # vLLM's name and that of others.
        result |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_call(call) for call in calls]
    return result


def _call(call: JsonObject) -> dict[str, object]:
    function = call["function"]
    arguments = arguments_text(function["arguments"])
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _deltas(message: Message) -> Iterator[dict[str, object]]:
    whole = _message(message)
    if "reasoning" in whole:
        yield {"reasoning": whole["reasoning"], "reasoning_content": whole["reasoning_content"]}
    if whole["content"]:
        yield {"content": whole["content"]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **_call(call)}]}
