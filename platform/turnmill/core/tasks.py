"""Cancellation of asyncio tasks."""

import asyncio


def is_cancelled() -> bool:
    """Return True if the current task itself was cancelled, and not only an awaitable that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
