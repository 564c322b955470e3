"""Commands of the browser, and their syntax."""

import re
from dataclasses import dataclass
from typing import Literal

from turnmill.tools.code_blocks import encodable

CommandName = Literal["click", "type", "scroll", "goto", "go_back", "go_forward", "stop", "none"]

USAGE = (
    "Think between <think> and </think>, then write one command in a fence: ```click [n]```, "
    "```type [n] [text] [1]``` (0 instead of 1: without pressing enter), ```scroll [down]```, ```scroll [up]```, "
    "```goto [address]```, ```go_back```, ```go_forward``` or ```stop [answer]```."
)

_TYPE = (
    re.compile(r"type\s*\[(\d{1,6})\]\s*\[?(.*?)\]?\s*\[(?:press_enter_after=)?([01])\]", re.DOTALL),
    re.compile(r"type\s*\[(\d{1,6})\]\s*\[(.*)\]()", re.DOTALL),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `none` shows the page."""

    name: CommandName
    element: int = 0
    text: str = ""
    enters: bool = True


def fenced_command(action: str) -> str | None:
    """Return the text in the code fence after a thought; None if there is none, empty for an empty action."""
    if not action.strip():
        return ""
    _, thought, rest = action.partition("<think>")
    match = re.search(r"</think>\s*```(.*?)```", rest, re.DOTALL) if thought else None
    return encodable(match.group(1).strip()) if match else None


def parse_command(text: str) -> Command | None:
    """Parse a command; None if it is not valid."""
    if not text:
        return Command("none")
    for pattern in _TYPE:
        if match := pattern.fullmatch(text):
            return Command("type", int(match.group(1)), match.group(2), match.group(3) != "0")
    if match := re.fullmatch(r"click\s*\[(\d{1,6})\]", text):
        return Command("click", int(match.group(1)))
    if match := re.fullmatch(r"scroll\s*\[?(?:direction=)?(up|down)\]?", text):
        return Command("scroll", text=match.group(1))
    if match := re.fullmatch(r"goto\s*\[(.*)\]", text):
        return Command("goto", text=match.group(1).strip())
    if match := re.fullmatch(r"stop(?:\s*\[(.*)\])?", text, re.DOTALL):
        return Command("stop", text=match.group(1) or "")
    return Command(text) if text in ("go_back", "go_forward") else None  # type: ignore[arg-type]
