"""Reading a response: the thought, the actions in the answer, and how it is kept."""

import re
from dataclasses import dataclass

SPECIAL_TOKENS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")

_WITH_THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_ALONE = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a response says."""

    text: str
    """The response put into its form again; as it was where it has none."""

    actions: tuple[str, ...]


def read_answer(response: str, *, think: bool, separator: str | None, max_actions: int) -> Answer:
    """The first thought and answer, or answer alone; actions beyond `max_actions` are dropped.

    Without a separator the whole answer is one action.
    """
    found = (_WITH_THOUGHT if think else _ALONE).search(response)
    if found is None:
        return Answer(response, ())
    whole = _plain(found["answer"])
    parts = (part.strip() for part in (whole.split(separator) if separator else [whole]))
    actions = tuple(part for part in parts if part)[:max_actions]
    answer = f"<answer>{f' {separator} '.join(actions)}</answer>"
    return Answer(f"<think>{_plain(found['thought'])}</think>{answer}" if think else answer, actions)


def _plain(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return text.strip()
