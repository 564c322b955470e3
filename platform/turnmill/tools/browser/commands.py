"""Commands of the browser, and their syntax."""

from dataclasses import dataclass
from typing import Literal

import re2

from turnmill.tools.code_blocks import find_all

CommandName = Literal["click", "type", "scroll", "goto", "go_back", "go_forward", "stop", "none"]

USAGE = (
    "Think between <think> and </think>, then write one command in a fence: ```click [n]```, "
    "```type [n] [text] [1]``` (0 instead of 1: without pressing enter), ```scroll [down]```, ```scroll [up]```, "
    "```goto [address]```, ```go_back```, ```go_forward``` or ```stop [answer]```."
)

_TYPE = (
    r"(?s)type\s*\[(\d{1,6})\]\s*\[?(.*?)\]?\s*\[(?:press_enter_after=)?([01])\]",
    r"(?s)type\s*\[(\d{1,6})\]\s*\[(.*)\]()",
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
    blocks = find_all(r"(?s)</think>\s*```(.*?)```", rest) if thought else ()
    return blocks[0].strip() if blocks else None


def parse_command(text: str) -> Command | None:
    """Parse a command; None if it is not valid."""
    if not text:
        return Command("none")
    for pattern in _TYPE:
        if match := re2.fullmatch(pattern, text):
            return Command("type", int(match.group(1)), match.group(2), match.group(3) != "0")
    if match := re2.fullmatch(r"click\s*\[(\d{1,6})\]", text):
        return Command("click", int(match.group(1)))
    if match := re2.fullmatch(r"scroll\s*\[?(?:direction=)?(up|down)\]?", text):
        return Command("scroll", text=match.group(1))
    if match := re2.fullmatch(r"goto\s*\[(.*)\]", text):
        return Command("goto", text=match.group(1).strip())
    if match := re2.fullmatch(r"(?s)stop(?:\s*\[(.*)\])?", text):
        return Command("stop", text=match.group(1) or "")
    return Command(text) if text in ("go_back", "go_forward") else None  # type: ignore[arg-type]
