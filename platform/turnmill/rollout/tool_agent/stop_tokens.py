"""Stop tokens, which end an action, and extraction of the action from a response."""

import re
from collections.abc import Sequence
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.jobs.tool_agent import ToolAgent

_PATH = re.compile(r"[~\w./-]*[\w-][/.][~\w./-]*|[./~][~\w./-]*")
"""A text that can only be meant as a path: of a folder and a file, or with an extension."""


def load_stop_tokens(agent: ToolAgent) -> tuple[str, ...]:
    """Return the stop tokens of the job, or of the file it names. Raises SettingsError if it cannot be read."""
    given = agent.action_stop_tokens
    return agent.stop_tokens if given is None else parse_stop_tokens(given)


def parse_stop_tokens(given: str) -> tuple[str, ...]:
    """Return the stop tokens in `a,b`, or in a file with such a text. Raises SettingsError if it cannot be read."""
    if not given.strip():
        return ()
    path = Path(given)
    # Of the tokens in use, such as </python> and ```output, none looks like a path.
    if not (_PATH.fullmatch(given) or path.is_file()):
        return _split(given)
    try:
        return _split(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"spec.agent.actionStopTokens: {given!r} cannot be read: {error}. "
            "Give a text file of stop tokens with commas between them, or name them in spec.agent.stopTokens."
        ) from error


def _split(text: str) -> tuple[str, ...]:
    return tuple(token for part in text.split(",") if (token := part.strip()))


def find_action(text: str, stop_tokens: Sequence[str]) -> str | None:
    """Return the text up to the first stop token in the list that occurs in it; None if none does."""
    for token in stop_tokens:
        head, found, _ = text.partition(token)
        if found:
            return head + token
    return None
