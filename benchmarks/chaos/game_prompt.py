"""The prompt of the task as an environment: not beside it, as its processes would import what rollout does."""

from turnmill.rollout.verlog.memory import Memory


def prompt(memory: Memory, instructions: str) -> list[dict[str, str]]:
    """Return the observation alone."""
    return [{"role": "user", "content": memory.observation}]
