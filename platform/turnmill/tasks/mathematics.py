"""Comparing answers as mathematics, not as text."""

import re
import threading

from turnmill.core.errors import SettingsError

_SECONDS = 1
_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?<![0-9.])[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?")


def last_number(text: str) -> float | None:
    """The last number of a text, thousands separated or not; None where there is none."""
    found = _NUMBER.findall(text.replace("$", " "))
    return float(found[-1].replace(",", "")) if found else None


def is_same(said: str, truth: str) -> bool:
    """Whether an expression, the last of a text, equals another one."""
    if "".join(said.split()) == "".join(truth.split()):
        return True
    # A text that says nothing is no answer to anything, whatever the parser makes of it.
    if not truth.strip():
        return False
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise SettingsError(
            "environment: comparing expressions needs a package. Install `math-verify`, or take numbers as answers."
        ) from error
    # Its time limits use signals, which only a main thread gets.
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    gold = parse(f"\\boxed{{{truth}}}", parsing_timeout=seconds)
    for form in (said, f"\\boxed{{{said}}}"):
        if verify(gold, parse(form, parsing_timeout=seconds), timeout_seconds=seconds):
            return True
    return False
