"""What the APIs have in common."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.bodies import RequestBody
from turnmill.gateway.errors import GatewayError, RequestError
from turnmill.gateway.messages import JsonObject
from turnmill.gateway.rendering import ChatRenderer

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias",
            "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")  # fmt: skip
"""Fields that vLLM takes by the same names as sampling parameters."""

MAX_ANSWERS = 128

DONE = "data: [DONE]\n\n"


class Body(BaseModel):
    """The body of a request; fields that the gateway does not know are ignored, as agents send many."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str = ""
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = None
    chat_template_kwargs: JsonObject | None = None

    @classmethod
    def read(cls, body: RequestBody, conversation: str = "") -> Self:
        """Read a body and the field of its conversation. Raises RequestError with the field and the rule."""
        fields = dict(body.fields or {})
        if body.items is not None:
            # What was converted before is valid, and there may be much of it.
            new = [item.value for item in body.items if item.messages is None]
            fields[conversation] = new or [item.value for item in body.items[:1]]
        try:
            return cls.model_validate(fields if body.fields is not None else None)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in cls._problems(body)
            ]
            raise RequestError("; ".join(problems) or "body: it is no JSON object.") from error

    @classmethod
    def _problems(cls, body: RequestBody) -> list[ErrorDetails]:
        """Return the problems in the words of JSON."""
        try:
            cls.model_validate_json(body.data)
        except ValidationError as error:
            return error.errors()
        return []

    def sampling(self) -> dict[str, object]:
        """Return the sampling parameters that are given, by vLLM's names."""
        given = {**self.model_dump(include=set(SAMPLING)), **(self.model_extra or {})}
        return {name: given[name] for name in SAMPLING if given.get(name) is not None}


BodyT = TypeVar("BodyT", bound=Body)


class ApiCall(Protocol):
    """One call of an API."""

    request: AnswerRequest
    stream: bool

    def response(self, answers: Sequence[Answer]) -> JsonObject:
        """Return the body of the response."""

    def events(self, answers: Sequence[Answer]) -> Iterator[str]:
        """Return the events of a streamed response."""


ErrorBody = Callable[[GatewayError], JsonObject]
"""Returns the body of an error, as an API has it."""


ErrorEvent = Callable[[GatewayError], str]


@dataclass(frozen=True, slots=True)
class Api:
    """An API: where it is served, how its calls are read, and what its errors look like."""

    path: str
    conversation: str
    """The field of a body that holds the conversation."""

    read: Callable[[RequestBody, ChatRenderer], ApiCall]
    """Reads the body of a call. Raises RequestError."""

    error: ErrorBody

    error_event: ErrorEvent
    """Returns an error in a stream that has begun."""


def openai_error(error: GatewayError) -> JsonObject:
    """Return an error as OpenAI's APIs have it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


def openai_error_event(error: GatewayError) -> str:
    """Return an error in a stream as OpenAI's first APIs have it."""
    return event(openai_error(error))


def event(data: JsonObject, name: str | None = None) -> str:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json_text(data)}\n\n"


def json_text(data: JsonObject) -> str:
    """Return JSON in ASCII, as a policy may write half of a surrogate pair, which UTF-8 cannot encode."""
    return json.dumps(data, separators=(",", ":"))


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the strings that end an answer."""
    strings = [stop] if isinstance(stop, str) else stop or []
    return tuple(string for string in strings if string)


def chat_tools(tools: Sequence[JsonObject] | None, choice: object) -> tuple[JsonObject, ...]:
    """Return the functions among tools, without those that a client asks not to be called."""
    if choice == "none":
        return ()
    return tuple(tool for tool in tools or () if tool.get("type") == "function" and "function" in tool)


def structured_output(form: JsonObject, schema: object) -> Mapping[str, object]:
    """Return the sampling parameters for an answer of a `form`: one that follows a JSON schema, any JSON, or a text."""
    if form.get("type") == "json_schema":
        return {"structured_outputs": {"json": schema or {}}}
    return {"structured_outputs": {"json_object": True}} if form.get("type") == "json_object" else {}


def num_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the numbers of tokens of the prompt and of all answers to it."""
    return answers[0].num_prompt_tokens, sum(len(answer.token_ids) for answer in answers)
