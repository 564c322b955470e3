"""Comparison of answers as mathematical expressions."""

import re
import threading

from turnmill.core.errors import SettingsError

_TIMEOUT_SECONDS = 1
_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?<![0-9.])[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?")


def last_number(text: str) -> float | None:
    """Return the last number of a text, with or without thousands separators, or None if there is none."""
    found = _NUMBER.findall(text.replace("$", " "))
    return float(found[-1].replace(",", "")) if found else None


def is_equivalent(answer: str, truth: str) -> bool:
    """Return whether the last expression of an answer is mathematically equal to the correct one, by math-verify.

    Raises SettingsError if the package `math-verify` is not installed.
    """
    if "".join(answer.split()) == "".join(truth.split()):
        return True
    # The parser finds an empty text equal to some answers.
    if not truth.strip():
        return False
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise SettingsError(
            "environment: comparing expressions needs the package `math-verify`. Install it, or use a task with "
            "numbers as answers."
        ) from error
    # Its time limits use signals, which only the main thread receives.
    seconds = _TIMEOUT_SECONDS if threading.current_thread() is threading.main_thread() else None
    gold = parse(f"\\boxed{{{truth}}}", parsing_timeout=seconds)
    for form in (answer, f"\\boxed{{{answer}}}"):
        if verify(gold, parse(form, parsing_timeout=seconds), timeout_seconds=seconds):
            return True
    return False
