"""Stop tokens, which end an action, and extraction of the action from a response."""

from collections.abc import Sequence
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.jobs.tool_agent import ToolAgent


def load_stop_tokens(agent: ToolAgent) -> tuple[str, ...]:
    """Return the stop tokens of the job, or of the file it names. Raises SettingsError if it cannot be read."""
    if agent.action_stop_tokens is None:
        return agent.stop_tokens
    try:
        text = Path(agent.action_stop_tokens).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"spec.agent.actionStopTokens: {agent.action_stop_tokens!r} cannot be read: {error}. "
            "Give a text file of stop tokens with commas between them, or name them in spec.agent.stopTokens."
        ) from error
    return tuple(token for part in text.split(",") if (token := part.strip()))


def find_action(text: str, stop_tokens: Sequence[str]) -> str | None:
    """Return the text up to the first stop token in the list that occurs in it; None if none does."""
    for token in stop_tokens:
        head, found, _ = text.partition(token)
        if found:
            return head + token
    return None
