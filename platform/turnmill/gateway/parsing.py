"""From the text of a response to an answer: reasoning, content and calls of tools, as vLLM's parsers find them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from turnmill.core.errors import SettingsError
from turnmill.gateway.messages import JsonObject

HERMES_MARK = "<tool_call>"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call of a tool; arguments are JSON, or what the policy wrote instead."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A response by its parts."""

    content: str
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()


class AnswerParser(Protocol):
    """Parses responses."""

    def parse(self, text: str, tools: Sequence[JsonObject]) -> ParsedAnswer:
        """Return the parts of a response; without `tools` it calls none."""


class PlainParser:
    """Takes all text for content."""

    def parse(self, text: str, tools: Sequence[JsonObject]) -> ParsedAnswer:
        """Return the whole text as content."""
        return ParsedAnswer(text)


class VllmParser:
    """Applies vLLM's parsers, by their names there."""

    def __init__(self, tokenizer: object, *, tool_parser: str | None, reasoning_parser: str | None) -> None:
        """Raises SettingsError for a parser that vLLM does not have."""
        # Their import takes six seconds.
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        self._tokenizer = tokenizer
        self._request = ChatCompletionRequest
        self._tools = _found(ToolParserManager.get_tool_parser, tool_parser, "tool parser")
        self._reasoning = _found(ReasoningParserManager.get_reasoning_parser, reasoning_parser, "reasoning parser")

    def parse(self, text: str, tools: Sequence[JsonObject]) -> ParsedAnswer:
        """Return the parts of a response."""
        request = self._request(model="", messages=[{"role": "user", "content": ""}], tools=list(tools) or None)
        reasoning = None
        content: str | None = text
        if self._reasoning is not None:
            reasoning, content = self._reasoning(self._tokenizer).extract_reasoning(text, request)
        if self._tools is None or not tools:
            return ParsedAnswer(content or "", reasoning or "")
        found = self._tools(self._tokenizer, request.tools).extract_tool_calls(content or "", request)
        calls = tuple(ParsedCall(call.function.name, call.function.arguments) for call in found.tool_calls)
        return ParsedAnswer((found.content if found.tools_called else content) or "", reasoning or "", calls)


def create_parser(
    tokenizer: object, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> AnswerParser:
    """Return the parser with these names, or by the model's chat template: vLLM's `hermes` if it has `<tool_call>`."""
    if tool_parser is None and HERMES_MARK in str(getattr(tokenizer, "chat_template", None) or ""):
        tool_parser = "hermes"
    if tool_parser is None and reasoning_parser is None:
        return PlainParser()
    return VllmParser(tokenizer, tool_parser=tool_parser, reasoning_parser=reasoning_parser)


def arguments_text(arguments: object) -> str:
    """Return the arguments of a call as the text that OpenAI's API has."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _found(find: Callable[[str], Found], name: str | None, kind: str) -> Found | None:
    if name is None:
        return None
    try:
        return find(name)
    except KeyError as error:
        raise SettingsError(f"{name!r} is no {kind} of vLLM: take a name from its documentation.") from error
