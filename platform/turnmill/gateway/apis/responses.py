"""OpenAI's Responses, without state: each request has the whole conversation as items."""

import time
from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.apis.base import Api, Body, chat_tools, event, num_tokens, openai_error, structured_output
from turnmill.gateway.bodies import Item, RequestBody
from turnmill.gateway.errors import GatewayError, RequestError
from turnmill.gateway.messages import JsonObject, Message, normalized, tool_call
from turnmill.gateway.parsing import arguments_text
from turnmill.gateway.rendering import ChatRenderer


class ResponsesBody(Body):
    """A conversation to continue."""

    input: str | list[JsonObject]
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: object = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: JsonObject | None = None
    previous_response_id: str | None = None
    parallel_tool_calls: bool | None = None
    metadata: JsonObject | None = None


class ResponsesCall:
    """One call of Responses."""

    def __init__(self, request: RequestBody, renderer: ChatRenderer) -> None:
        body = ResponsesBody.read(request, RESPONSES.conversation)
        if body.previous_response_id is not None:
            raise RequestError(
                "previous_response_id: the gateway keeps no responses by id. Send the conversation in `input`."
            )
        asked = [normalized({"role": "user", "content": body.input})] if isinstance(body.input, str) else None
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        self.stream = bool(body.stream)
        self.request = AnswerRequest(
            digest=request.digest,
            messages=(*map(normalized, system), *(asked or messages_of(request.items or ()))),
            tools=chat_tools([_chat_tool(tool) for tool in body.tools or ()], body.tool_choice),
            template=body.chat_template_kwargs or {},
            sampling={**body.sampling(), **_format(body.text)},
            max_tokens=body.max_output_tokens,
        )
        self._body = body

    def response(self, answers: Sequence[Answer]) -> JsonObject:
        """Return the body of the response."""
        (answer,) = answers
        cut = answer.finish_reason == "length"
        prompt, output = num_tokens(answers)
        return {
            **self._head("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(self._items(answer.message)),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            },
        }

    def events(self, answers: Sequence[Answer]) -> Iterator[str]:
        """Return the events of a streamed response."""
        whole = self.response(answers)
        for number, data in enumerate(self._events(whole)):
            yield event({**data, "sequence_number": number}, str(data["type"]))

    def _events(self, whole: JsonObject) -> Iterator[dict[str, object]]:
        begun = {**self._head("in_progress"), "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(whole["output"]):
            place = {"item_id": item["id"], "output_index": index}
            empty = {**item, "status": "in_progress"}
            if item["type"] == "function_call":
                empty["arguments"] = ""
            else:
                empty["content"] = []
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            yield from _deltas(item, place)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _head(self, status: str) -> dict[str, object]:
        body = self._body
        return {
            "id": f"resp_{self.request.digest}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "model": body.model,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
        }

    def _items(self, message: Message) -> Iterator[dict[str, object]]:
        key = self.request.digest
        if reasoning := message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": reasoning}]
            yield {"type": "reasoning", "id": f"rs_{key}", "summary": [], "content": content, "status": "completed"}
        calls = message.get("tool_calls") or ()
        if message["content"] or not calls:
            part = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
            yield {"type": "message", "id": f"msg_{key}", "role": "assistant", "status": "completed", "content": [part]}
        for number, call in enumerate(calls):
            yield {
                "type": "function_call",
                "id": f"fc_{key}_{number}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": arguments_text(call["function"]["arguments"]),
                "status": "completed",
            }


def _error_event(error: GatewayError) -> str:
    # OpenAI's client raises what has the field `error`, and yields other events.
    body = {"type": "error", "code": error.code, "message": str(error), "param": None, **openai_error(error)}
    return event(body, "error")


RESPONSES = Api("/responses", "input", ResponsesCall, openai_error, _error_event)


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Return items as messages: reasoning, text and calls that follow each other are one answer of the assistant.

    What does not depend on items that may follow is kept with an item, so that each is read once.
    """
    messages: list[Message] = []
    unfinished: JsonObject | None = None
    for item in items:
        if item.messages is None:
            finished, item.unfinished = _next_messages(unfinished, item.value)
            item.messages = tuple(map(normalized, finished))
        messages += item.messages
        unfinished = item.unfinished
    return messages if unfinished is None else [*messages, normalized(unfinished)]


def _next_messages(unfinished: JsonObject | None, item: JsonObject) -> tuple[list[JsonObject], JsonObject | None]:
    """Return the messages that an item finishes, and the one to which items after it may belong."""
    kind = item.get("type", "message")
    before = [unfinished] if unfinished is not None else []
    if kind == "function_call_output":
        result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": _parts(item.get("output"))}
        return [*before, result], None
    if kind not in ("message", "function_call", "reasoning"):
        # Others, such as calls of the server's own tools, are nothing that a policy wrote or reads.
        return [], unfinished
    part = _part(kind, item)
    if part["role"] != "assistant":
        return [*before, part], None
    if unfinished is not None and _joins(unfinished, part):
        return [], _joined(unfinished, part)
    return before, part


def _part(kind: str, item: JsonObject) -> dict[str, object]:
    if kind == "function_call":
        call = tool_call(item.get("call_id"), str(item.get("name")), item.get("arguments"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "reasoning":
        texts = [part.get("text", "") for part in item.get("content") or item.get("summary") or ()]
        return {"role": "assistant", "content": "", "reasoning_content": "".join(texts)}
    return {"role": item.get("role"), "content": _parts(item.get("content"))}


def _joins(before: JsonObject, part: JsonObject) -> bool:
    """Return whether a part belongs to the answer before it: of each kind that an answer has once, the first does."""
    if part.get("tool_calls"):
        return True
    return not before.get("tool_calls") and not before["content"] and bool(part["content"])


def _joined(before: JsonObject, part: JsonObject) -> JsonObject:
    if calls := part.get("tool_calls"):
        return {**before, "tool_calls": [*before.get("tool_calls", ()), *calls]}
    return {**before, "content": part["content"]}


def _parts(content: object) -> object:
    """Return content whose refusals are texts, too, and whose pictures are as in OpenAI's chat."""
    return [_part_of_chat(part) for part in content] if isinstance(content, list) else content


def _part_of_chat(part: object) -> object:
    if isinstance(part, dict):
        if "refusal" in part:
            return {**part, "text": part["refusal"]}
        if part.get("type") == "input_image":
            if part.get("image_url") is None:
                raise RequestError(
                    "input: a picture has no image_url, and the gateway keeps no files: send a data URL."
                )
            return {"type": "image_url", "image_url": part["image_url"]}
    return part


def _chat_tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function" or "function" in tool:
        return tool
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _format(text: JsonObject | None) -> JsonObject:
    given = (text or {}).get("format") or {}
    return structured_output(given, given.get("schema"))


def _deltas(item: JsonObject, place: JsonObject) -> Iterator[dict[str, object]]:
    if item["type"] == "function_call":
        yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
        end = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **end}
        return
    kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
    (part,) = item["content"]
    place = {**place, "content_index": 0}
    log_probs: dict[str, object] = {"logprobs": []} if kind == "output_text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": f"response.{kind}.delta", **place, "delta": part["text"], **log_probs}
    yield {"type": f"response.{kind}.done", **place, "text": part["text"], **log_probs}
    yield {"type": "response.content_part.done", **place, "part": part}
