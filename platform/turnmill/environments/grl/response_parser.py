"""Parser of responses in GRL's form: a thought, and an answer with one or several actions."""

import re
from dataclasses import dataclass

SPECIAL_TOKENS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")

_WITH_THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_ALONE = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """Actions of a response, and its text as it is kept in the chat."""

    text: str
    """The response in normalized form; unchanged if it does not have the required form."""

    actions: tuple[str, ...]


def parse_response(response: str, *, think: bool, separator: str | None, max_actions: int) -> ParsedResponse:
    """Parse the first thought and answer, or, without `think`, the first answer alone.

    Actions beyond `max_actions` are dropped; without a separator the whole answer is one action.
    """
    found = (_WITH_THOUGHT if think else _ALONE).search(response)
    if found is None:
        return ParsedResponse(response, ())
    content = _without_special_tokens(found["answer"])
    parts = (part.strip() for part in (content.split(separator) if separator else [content]))
    actions = tuple(part for part in parts if part)[:max_actions]
    answer = f"<answer>{f' {separator} '.join(actions)}</answer>"
    thought = f"<think>{_without_special_tokens(found['thought'])}</think>" if think else ""
    return ParsedResponse(f"{thought}{answer}", actions)


def _without_special_tokens(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return text.strip()
