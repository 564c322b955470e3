"""Anthropic's Messages."""

import json
from collections.abc import Iterator, Sequence

from pydantic import Field

from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.apis.base import Api, Body, chat_tools, event, num_tokens, stop_strings
from turnmill.gateway.bodies import RequestBody
from turnmill.gateway.errors import GatewayError, RequestError
from turnmill.gateway.messages import JsonObject, Message, normalized, tool_call
from turnmill.gateway.rendering import ChatRenderer

BILLING = "x-anthropic-billing-header"
"""Begins a block of the system prompt that says who pays, and may change with each request."""

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesBody(Body):
    """A conversation to continue."""

    messages: list[JsonObject] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    stop_sequences: list[str] | None = None


class MessagesCall:
    """One call of Messages."""

    def __init__(self, request: RequestBody, renderer: ChatRenderer) -> None:
        body = MessagesBody.read(request, MESSAGES.conversation)
        self.stream = bool(body.stream)
        system = _system(body.system)
        self.request = AnswerRequest(
            digest=request.digest,
            messages=(*map(normalized, system), *request.messages(_messages)),
            tools=chat_tools(
                [_chat_tool(tool) for tool in body.tools or () if "name" in tool], (body.tool_choice or {}).get("type")
            ),
            template=body.chat_template_kwargs or {},
            sampling=body.sampling(),
            max_tokens=body.max_tokens,
            stop=stop_strings(body.stop_sequences),
        )
        self._body = body

    def response(self, answers: Sequence[Answer]) -> JsonObject:
        """Return the body of the response."""
        (answer,) = answers
        return {**self._head(answers), "content": list(_blocks(answer.message)), **_stop(answer)}

    def events(self, answers: Sequence[Answer]) -> Iterator[str]:
        """Return the events of a streamed response."""
        for data in self._events(answers):
            yield event(data, str(data["type"]))

    def _events(self, answers: Sequence[Answer]) -> Iterator[dict[str, object]]:
        (answer,) = answers
        begun = {**self._head(answers), "content": [], "stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": begun}
        for index, block in enumerate(_blocks(answer.message)):
            yield {"type": "content_block_start", "index": index, "content_block": _emptied(block)}
            for delta in _deltas(block):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": _stop(answer), "usage": self._usage(answers)}
        yield {"type": "message_stop"}

    def _head(self, answers: Sequence[Answer]) -> dict[str, object]:
        return {
            "id": f"msg_{self.request.digest}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "usage": self._usage(answers),
        }

    def _usage(self, answers: Sequence[Answer]) -> JsonObject:
        prompt, output = num_tokens(answers)
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {"input_tokens": prompt, "output_tokens": output, **cache}


def _error(error: GatewayError) -> JsonObject:
    kind = ERROR_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


MESSAGES = Api("/messages", "messages", MessagesCall, _error, lambda error: event(_error(error), "error"))


def _system(system: str | Sequence[JsonObject] | None) -> list[JsonObject]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    texts = [block for block in blocks if not str(block.get("text", "")).startswith(BILLING)]
    return [{"role": "system", "content": texts}] if texts else []


def _messages(message: JsonObject) -> list[Message]:
    """Return a message as those of OpenAI's chat: results of tools are messages of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        return [normalized(message)]
    if message.get("role") == "assistant":
        return [normalized(_assistant(content))]
    results = [block for block in content if block.get("type") == "tool_result"]
    found: list[JsonObject] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _parts(block.get("content"))}
        for block in results
    ]
    others = [block for block in content if block.get("type") != "tool_result"]
    if others or not results:
        found.append({"role": message.get("role"), "content": _parts(others)})
    return [normalized(each) for each in found]


def _parts(content: object) -> object:
    """Return content whose pictures are as in OpenAI's chat."""
    if not isinstance(content, list):
        return content
    return [_picture(block) if isinstance(block, dict) and block.get("type") == "image" else block for block in content]


def _picture(block: JsonObject) -> JsonObject:
    source = block.get("source")
    kind, data = (source.get("type"), source.get("data")) if isinstance(source, dict) else (None, None)
    if kind != "base64" or not isinstance(data, str):
        raise RequestError(
            f"messages: a picture has a source of type {kind!r:.60} without data in base64, and the gateway fetches "
            "nothing: send the file as `base64`."
        )
    return {"type": "image_url", "image_url": f"data:image;base64,{data}"}


def _assistant(blocks: Sequence[JsonObject]) -> JsonObject:
    by_type = {kind: [block for block in blocks if block.get("type") == kind] for kind in ("thinking", "tool_use")}
    return {
        "role": "assistant",
        "content": "".join(block.get("text", "") for block in blocks if block.get("type") == "text"),
        "reasoning_content": "".join(block.get("thinking", "") for block in by_type["thinking"]),
        "tool_calls": [
            tool_call(block.get("id"), str(block.get("name")), block.get("input")) for block in by_type["tool_use"]
        ],
    }


def _chat_tool(tool: JsonObject) -> JsonObject:
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    if description := tool.get("description"):
        function["description"] = description
    return {"type": "function", "function": function}


def _stop(answer: Answer) -> dict[str, object]:
    reason = "stop_sequence" if answer.stop is not None else STOP_REASONS[answer.finish_reason]
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _blocks(message: Message) -> Iterator[dict[str, object]]:
    if reasoning := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": reasoning, "signature": "turnmill"}
    calls = message.get("tool_calls") or ()
    if message["content"] or not calls:
        yield {"type": "text", "text": message["content"]}
    for call in calls:
        arguments = call["function"]["arguments"]
        given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        yield {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given}


def _emptied(block: JsonObject) -> JsonObject:
    empty: dict[str, JsonObject] = {
        "thinking": {"thinking": "", "signature": ""},
        "text": {"text": ""},
        "tool_use": {"input": {}},
    }
    return {**block, **empty[block["type"]]}


def _deltas(block: JsonObject) -> Iterator[JsonObject]:
    if block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "text":
        yield {"type": "text_delta", "text": block["text"]}
    else:
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
