"""Calls of functions in the messages of an endpoint, and in the text of responses as verl's loops read them."""

from collections.abc import Iterator, Sequence

from openai.types.chat import ChatCompletionMessage

from turnmill.evaluation.message_tokens import Message, MessageTokenizer
from turnmill.rollout.multi_turn.hermes import HermesCalls


def text_of(message: ChatCompletionMessage) -> str:
    """Return a response with its calls as text, in the format `hermes`."""
    calls = [call.function for call in message.tool_calls or () if call.type == "function"]
    return (message.content or "") + "".join(
        f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments or "{}"}}}</tool_call>' for call in calls
    )


def with_calls(messages: Sequence[Message], tokenizer: MessageTokenizer) -> Iterator[Message]:
    """Yield messages with the calls in their texts as an API has them, each with the id of its answer."""
    parser = HermesCalls(tokenizer)
    ids: list[str] = []
    for position, message in enumerate(messages):
        text = message.get("content")
        if message["role"] == "tool" and ids:
            yield {**message, "tool_call_id": ids.pop(0)}
        elif message["role"] == "assistant" and isinstance(text, str) and "<tool_call>" in text:
            content, calls = parser.calls_in(text)
            # An API refuses calls without answers: those beyond `maxParallelCalls`.
            calls = calls[: _num_answers(messages[position + 1 :])]
            ids = [f"call_{position}_{number}" for number in range(len(calls))]
            parts = [
                {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call_id, call in zip(ids, calls, strict=True)
            ]
            yield {"role": "assistant", "content": content, "tool_calls": parts} if parts else message
        else:
            yield message


def _num_answers(messages: Sequence[Message]) -> int:
    """Return the number of messages of tools at the beginning."""
    return next((number for number, message in enumerate(messages) if message["role"] != "tool"), len(messages))
